package account

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/beneath"
)

// OpenHistory opens the directory of an agent's history, and makes it if it is missing. No part of its path below the base
// or of a history.dir is followed through a link. root is the agent's scope, of OpenScope, and owner its user. OpenHistory
// checks that the directory is the user's alone, on the mount of the scope, and apart from what other agents have.
func (h *Host) OpenHistory(def *agents.Definition, root *beneath.Root, owner User) (*beneath.Root, error) {
	name := h.Paths.History(def.Name, def.History.Dir)
	parent, err := h.openHistories(def)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	defer parent.Close()
	if def.History.Dir != "" { // before it is made: it would lie in what another agent has, which would be refused for it
		if err := h.apartHistory(def, name, parent); err != nil {
			return nil, fmt.Errorf("history: %q %w", name, err)
		}
	}
	history, err := makeHistory(parent, name, def, owner)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	err = onMountOf(root, history)
	if err == nil && def.History.Dir != "" && h.Root {
		err = Chosen(name, owner, "write another history.dir")
	}
	if err != nil {
		history.Close()
		return nil, fmt.Errorf("history: %q %w", name, err)
	}
	return history, nil
}

// FindHistory opens the directory that is at the path of an agent's history. It makes none and checks nothing.
func (h *Host) FindHistory(def *agents.Definition) (*beneath.Root, error) {
	if def.History.Dir != "" {
		return beneath.OpenDir(h.Paths.History(def.Name, def.History.Dir))
	}
	return beneath.OpenRoot(h.Paths.Base, filepath.Join(filepath.Base(h.Paths.Histories()), string(def.Name)))
}

// openHistories opens the directory that holds the agent's history. It makes {base}/history, and no directory that
// history.dir names: where that is missing, its file system may be.
func (h *Host) openHistories(def *agents.Definition) (*beneath.Root, error) {
	if dir := def.History.Dir; dir != "" {
		parent, err := beneath.OpenDir(dir)
		switch {
		case errors.Is(err, unix.ENOENT):
			return nil, fmt.Errorf("dir: %q: %w: make it (mkdir -m 711), or correct the definition", dir, unix.ENOENT)
		case errors.Is(err, unix.ELOOP):
			return nil, fmt.Errorf("dir: %q leads through a symbolic link: write the path without links", dir)
		}
		return parent, err
	}
	if err := os.Mkdir(h.Paths.Histories(), 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	parent, err := beneath.OpenRoot(h.Paths.Base, filepath.Base(h.Paths.Histories()))
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil,
			fmt.Errorf("%q is no directory, or a symbolic link: replace it by a directory, or write history: {dir: PATH} into the definition", h.Paths.Histories())
	}
	return parent, err
}

// makeHistory opens the directory of an agent's history in parent, and makes it if it is missing.
func makeHistory(parent *beneath.Root, name string, def *agents.Definition, owner User) (*beneath.Root, error) {
	dir, err := parent.Dir("")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if err := dir.Mkdir(string(def.Name), 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make %q: %w", name, err)
	}
	f, err := parent.Object(string(def.Name))
	if errors.Is(err, beneath.ErrEscape) {
		return nil, fmt.Errorf("%q is a mount of its own: write a history: {dir: PATH} that is on the mount of the agent's directory", name)
	}
	if err != nil {
		return nil, err
	}
	if err := ownHistory(f, name, owner); err != nil {
		f.Close()
		return nil, err
	}
	return beneath.NewRoot(f.FD()), nil
}

// ownHistory gives a new directory to the agent's user, and returns an error for one that is not that user's alone.
func ownHistory(f beneath.File, name string, owner User) error {
	st, err := f.Stat()
	if err == nil && st.IsDir() && st.Uid != owner.UID && int(st.Uid) == os.Geteuid() && isEmpty(fmt.Sprintf("/proc/self/fd/%d", f.FD())) {
		// New, perhaps made by a daemon that was killed before this.
		if err = f.Chown(int(owner.UID), int(owner.GID)); err == nil {
			st, err = f.Stat()
		}
	}
	switch {
	case err != nil:
		return err
	case !st.IsDir():
		return fmt.Errorf("%q is no directory: remove it, or move it away", name)
	case st.Uid != owner.UID:
		return fmt.Errorf(
			"%q is of user %d, and the agent runs as user %d: move it away, or change the owner of what is in it", name, st.Uid, owner.UID)
	case st.Mode&0o077 != 0:
		return fmt.Errorf("%q is open to others than user %d: chmod 700 it", name, owner.UID)
	}
	return nil
}

// onMountOf returns an error unless both directories are on one mount: renameat2(2) fails with EXDEV between two.
func onMountOf(root, history *beneath.Root) error {
	var mounts [2]uint64
	for i, dir := range []*beneath.Root{root, history} {
		st, err := dir.Stat("")
		if err != nil {
			return err
		}
		mounts[i] = st.Mnt_id
	}
	if mounts[0] != mounts[1] {
		return errors.New("is not on the mount of the agent's directory: write a history: {dir: PATH} that is on that mount, outside of the directory")
	}
	return nil
}

// apartHistory returns an error if the history in parent, which a history.dir names, holds what an agent, a sandbox or the
// daemon has, or is in it.
func (h *Host) apartHistory(def *agents.Definition, name string, parent *beneath.Root) error {
	all, err := h.Mounts.Read()
	if err != nil {
		return err
	}
	place, err := mount.PlaceOf(all, parent.FD())
	if err != nil {
		return err
	}
	place.Path = filepath.Join(place.Path, string(def.Name))
	others, err := h.ownPlaces(all)
	for _, shown := range h.Expose {
		o, e := placed(all, shown, "what expose shows to every agent")
		others, err = append(others, o), errors.Join(err, e)
	}
	for id, other := range h.Definitions() {
		o, e := h.scopePlace(all, other.Definition)
		o.what = "the files of agent " + string(id)
		others, err = append(others, o), errors.Join(err, e)
	}
	own, e := h.scopePlace(all, def) // the definition may be newer than those that are loaded
	own.what = "the agent's own files"
	others, err = append(others, own), errors.Join(err, e)
	for _, o := range others {
		if o.name != name && o.name != h.Paths.Base && o.name != h.Paths.Histories() && o.meets(place) {
			return fmt.Errorf("and %q hold one another: choose a history.dir apart from %s", o.name, o.what)
		}
	}
	return err
}
