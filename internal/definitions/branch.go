package definitions

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// MakeBranch writes the definition of a branch of an agent.
func MakeBranch(p config.Paths, id, of scope.ID) error {
	if _, err := Agent(p, of); err != nil {
		return err
	}
	name := ownFile(p, id)
	err := Write(name, fmt.Appendf(nil, "---\nname: %s\nbranch: %s\n---\n", id, of), 0o644, false)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s: an agent %q is defined already: choose another name", name, id)
	}
	if err != nil {
		return err
	}
	if _, loads := Agent(p, id); loads != nil {
		err = errors.Join(loads, os.Remove(name))
	}
	return err
}

// RemoveBranch removes a branch, which is not mounted, and the changes that it holds.
func RemoveBranch(p config.Paths, id scope.ID) error {
	def, err := Agent(p, id)
	if err != nil {
		return err
	}
	if def.Branch == "" {
		return fmt.Errorf("%s is no branch: its changes go with scopefs discard --all", id)
	}
	name := p.History(def.Name, def.History.Dir)
	if err := ownPlace(def.Definition, name); err != nil {
		return err
	}
	if err := view.RemoveBranch(name); err != nil {
		return err
	}
	return os.Remove(ownFile(p, id))
}

// ownPlace returns an error if root would remove a directory that another user can have put in the place of a branch's.
func ownPlace(def *agents.Definition, name string) error {
	info, err := os.Lstat(name)
	if def.History.Dir == "" || os.Geteuid() != 0 || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	owner := account.User{UID: info.Sys().(*syscall.Stat_t).Uid}
	return account.Chosen(name, owner, "look at what is in it, and remove it")
}

func ownFile(p config.Paths, id scope.ID) string {
	return filepath.Join(p.Base, "agents.d", string(id)+".md")
}
