// Package forget removes what a base keeps of an agent that nobody uses. The log, the definition and the agent's directory stay.
package forget

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/branch"
	"github.com/scopefs/scopefs/fs/hold"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/scope/share"
)

// Agent returns the paths of what a base keeps of an agent. histories is the history.dir of its definition, databases the directory of
// scopefs.yaml; "": the usual ones.
func Agent(p config.Paths, id scope.ID, histories, databases string) []string {
	database, _ := share.File{Dir: cmp.Or(databases, filepath.Join(p.State, "db"))}.Apply(id, "") // cannot fail
	history := p.History(id, histories)
	all := []string{p.Home(id), history, filepath.Join(filepath.Dir(history), "."+string(id)+".host"),
		filepath.Join(p.State, "rates", string(id)), filepath.Join(p.State, "rates", string(id)+".network"),
		state.LentFile(p.State, id), database, database + "-journal", database + "-wal", database + "-shm"}
	return existing(append(all, state.ApprovalsOf(p.State, id)...))
}

// Project returns the paths of all that the base of a project has, but the log, which keeps no space for events that nobody writes.
func Project(p config.Paths) (all []string) {
	for _, dir := range []string{p.Base, p.State} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if name := filepath.Join(dir, e.Name()); name != p.State && name != p.Audit() {
				all = append(all, name)
			}
		}
	}
	return append(all, existing([]string{filepath.Join(p.Audit(), audit.Reserve)})...)
}

func existing(all []string) []string {
	return slices.DeleteFunc(all, func(name string) bool {
		_, err := os.Lstat(name)
		return errors.Is(err, fs.ErrNotExist)
	})
}

// Remove removes files and directories. It follows no link, and enters no mount: see [branch.Remove].
func Remove(all []string) error {
	for _, name := range all {
		if err := remove(name); err != nil {
			return fmt.Errorf("%w: look at what is in it, and remove it", err)
		}
	}
	return nil
}

func remove(name string) error {
	err := os.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	dir, open := beneath.OpenDir(name)
	if open != nil {
		return err
	}
	defer dir.Close()
	if _, held := dir.Stat(hold.UpperName); held == nil {
		return view.RemoveBranch(name)
	}
	if err := branch.Remove(dir); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return os.Remove(name)
}
