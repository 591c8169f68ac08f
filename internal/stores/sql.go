package stores

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/stores/wire"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/share"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sql"
	"github.com/scopefs/scopefs/tools/sql/engine"
)

// A UserOf returns the user and group of an agent's processes.
type UserOf func(scope.ID) (uid, gid uint32, err error)

// sql adds the SQL store. With user, the process of each database runs as the
// agent's user; nil is the daemon's own.
func (s *Stores) sql(config *config.SQLStore, state string, user UserOf) error {
	if config == nil {
		return nil
	}
	if config.Postgres != nil {
		return s.postgres(config)
	}
	files := share.File{Dir: cmp.Or(config.Dir, filepath.Join(state, "db"))}
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
	held := s.bound(&disk{store: "sql", measure: func(_ context.Context, agent scope.ID) (quota.Use, error) {
		bytes, err := sql.FileBytes(files, agent)
		return quota.Use{Bytes: bytes}, err
	}})
	list, err := sql.New(sql.Options{Engine: engines, Drop: config.Drop, Within: held.changeWithin})
	if err != nil {
		return err
	}
	// A database is opened for an agent's call, so there is nothing to check before.
	s.add(store{name: "sql", kind: "sqlite", tools: list, check: func(context.Context) error { return nil },
		close: engines.Close, end: engines.End})
	s.tools = append(s.tools, list...)
	return nil
}

// postgres adds the SQL store on a PostgreSQL server.
func (s *Stores) postgres(config *config.SQLStore) error {
	s.drivers.serve(wire.SQL, config.Password, only(config.Postgres.Network, config.Postgres.Address))
	s.drivers.settings.SQL = config
	one := remoteSQL{s.drivers, sql.Limits{Timeout: config.Timeout}.Bound()}
	list, err := sql.New(sql.Options{Engine: one, Postgres: true, Drop: config.Drop})
	if err != nil {
		return err
	}
	s.add(store{name: "sql", kind: "postgres", tools: list, check: one.ping})
	s.tools = append(s.tools, list...)
	return nil
}

// remoteSQL is the SQL store as its driver serves it.
type remoteSQL struct {
	*drivers
	bound time.Duration // of a statement
}

// connectTime is how long a session takes to begin: a login, the making of the role, and
// another login.
const connectTime = 10 * time.Second

// Do executes a request in the agent's schema.
func (r remoteSQL) Do(ctx context.Context, agent scope.ID, q engine.Request) (engine.Reply, error) {
	role, err := share.Schemas{}.Apply(agent, "")
	if err != nil {
		return engine.Reply{}, tools.Errorf(tools.Unavailable, "the agent's id is too long for a role of the database").
			Suggest("ask the operator for an id of at most 57 bytes").Because(err)
	}
	reply, err := call(ctx, r.drivers, connectTime+r.bound+callTime, wire.SQLDo, wire.Statement{Role: role, Request: q})
	if err != nil {
		return engine.Reply{}, err
	}
	return sql.Check(&q, reply)
}

// ping checks that the store works.
func (r remoteSQL) ping(ctx context.Context) error { return ping(ctx, r.drivers, wire.SQLPing) }
