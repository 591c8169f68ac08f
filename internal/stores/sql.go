package stores

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/sql"
)

// A UserOf returns the user and group of an agent's processes.
type UserOf func(scope.ID) (uid, gid uint32, err error)

// sql adds the SQL store. With user, the process of each database runs as the
// agent's user; nil is the daemon's own.
func (s *Stores) sql(config *config.SQLStore, state string, user UserOf) error {
	if config == nil {
		return nil
	}
	files := scope.File{Dir: cmp.Or(config.Dir, filepath.Join(state, "db"))}
	start := func(ctx context.Context, id scope.ID) (*sql.Process, error) {
		binary, err := s.drivers.find()
		if err != nil {
			return nil, err
		}
		x := sql.Exec{Files: files, Program: binary.Path()}
		if user != nil {
			uid, gid, err := user(id)
			if err != nil {
				return nil, fmt.Errorf("user of the database's process: %w", err)
			}
			x.User = func(scope.ID) (uint32, uint32) { return uid, gid }
		}
		return x.Start(ctx, id)
	}
	engines := sql.NewEngines(start, sql.Limits{FileBytes: config.Size, Timeout: config.Timeout})
	list, err := sql.New(sql.Options{Engines: engines, Drop: config.Drop})
	if err != nil {
		return err
	}
	// A database is opened for an agent's call, so there is nothing to check before.
	s.add(store{name: "sql", kind: "sqlite", tools: list, check: func(context.Context) error { return nil }, close: engines.Close, end: engines.End})
	s.tools = append(s.tools, list...)
	return nil
}
