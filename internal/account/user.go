package account

import (
	"errors"
	"fmt"
	"os"
	osuser "os/user"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/beneath"
)

// User has the ids with which an agent's view and sandbox run.
type User struct{ UID, GID uint32 }

// agentUser returns the user of a definition, else the owner of the scope.
func agentUser(spec string, root *beneath.Root) (User, error) {
	if spec == "" {
		f, err := root.Object("")
		if err != nil {
			return User{}, err
		}
		defer f.Close()
		st, err := f.Stat()
		return User{st.Uid, st.Gid}, err
	}
	name, group, both := strings.Cut(spec, ":")
	uid, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		u, err := osuser.Lookup(name)
		if err != nil {
			return User{}, fmt.Errorf("user %q: %w: create it, or give a number", name, err)
		}
		if uid, err = strconv.ParseUint(u.Uid, 10, 32); err != nil {
			return User{}, err
		}
		if !both {
			group = u.Gid
		}
	}
	if group == "" {
		group = strconv.FormatUint(uid, 10)
	}
	gid, err := strconv.ParseUint(group, 10, 32)
	if err != nil {
		g, err := osuser.LookupGroup(group)
		if err != nil {
			return User{}, fmt.Errorf("group %q: %w: create it, or give a number", group, err)
		}
		if gid, err = strconv.ParseUint(g.Gid, 10, 32); err != nil {
			return User{}, err
		}
	}
	return User{uint32(uid), uint32(gid)}, nil
}

// OpenScope opens an agent's directory and returns the agent's user. With dir: it checks
// that the directory is apart from other files, that no other user chose it, and that the
// user may enter it.
func (h *Host) OpenScope(def *agents.Definition) (*beneath.Root, User, error) {
	root, err := h.openRoot(def)
	if err != nil {
		return nil, User{}, err
	}
	owner, err := h.ScopeUser(def, root)
	if err == nil && def.Home == "" && def.Dir != "" {
		if def.RootOf != "" {
			err = rootable(def.Dir, owner)
		}
		if err == nil {
			err = h.apart(def, root)
		}
		if err == nil && h.Root && def.User == "" {
			err = Chosen(def.Dir, owner, "set user")
		}
		if err == nil && h.Root {
			err = enterable(def.Dir, root, owner)
		}
	}
	if err != nil {
		root.Close()
		return nil, User{}, err
	}
	return root, owner, nil
}

// rootable returns an error for a directory that is more than a root may be: the system's, or a HOME.
func rootable(dir string, owner User) error {
	homes := []string{}
	if u, err := osuser.LookupId(strconv.FormatUint(uint64(owner.UID), 10)); err == nil {
		homes = append(homes, u.HomeDir)
	}
	return paths.Refuse("root", dir, "choose the directory of a project", homes)
}

// Current returns an error if the directory of a project was made anew since its base was made: it has the rules of another base.
func (h *Host) Current(def *agents.Definition, root *beneath.Root) error {
	if p, ok := config.ProjectOfBase(h.Paths); ok && def.Dir == p.Dir && p.IsOther(root.FD()) {
		return fmt.Errorf("dir: %q is not the directory that %s was made for: give it to --dir, for an agent of its own", def.Dir, p.ID)
	}
	return nil
}

// openRoot opens the directory of a definition. OpenHome has checked that of a HOME.
func (h *Host) openRoot(def *agents.Definition) (*beneath.Root, error) {
	if def.Home != "" {
		return beneath.OpenRoot(h.Paths.Homes(), string(def.Home))
	}
	return def.OpenRoot(h.Paths.Base)
}

// ScopeUser returns the user of the agent of an open scope. The daemon of an ordinary user
// serves a dir: with that user's own id, 0 in the user namespace, whoever owns the
// directory.
func (h *Host) ScopeUser(def *agents.Definition, root *beneath.Root) (User, error) {
	if def.Dir != "" && def.User == "" && !h.Root {
		return User{}, nil
	}
	return agentUser(def.User, root)
}

// Chosen returns an error if a user other than root and the owner of a dir: can put another
// directory in its place. The agent would run as the owner of the other directory, and its
// tools would give that owner's files to this user.
func Chosen(name string, owner User, remedy string) error {
	for at := name; at != "/"; {
		at = filepath.Dir(at)
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil {
			return fmt.Errorf("dir: %w", err)
		}
		others := uint32(unix.S_IWOTH)
		if st.Gid != 0 && st.Gid != owner.UID { // a group with the number of a user is that user's own
			others |= unix.S_IWGRP
		}
		// Of a sticky directory, users replace their own entries alone (inode(7)).
		if st.Uid != 0 && st.Uid != owner.UID || st.Mode&others != 0 && st.Mode&unix.S_ISVTX == 0 {
			return fmt.Errorf("dir: %q belongs to user %d, and others than that user can replace it in %q: %s", name, owner.UID, at, remedy)
		}
	}
	return nil
}

// enterable returns an error unless the user may list the directory.
func enterable(name string, root *beneath.Root, u User) error {
	return beneath.Caller{UID: u.UID, GID: u.GID}.Do(func() error {
		fd, err := unix.Openat(root.FD(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("dir: %q: agent's user %d: %w: open it to that user, or set user", name, u.UID, err)
		}
		return unix.Close(fd)
	})
}

// MakeScope makes {base}/agents/{id} if it is missing, and no directory that dir: names.
// It does not make {base}/agents: where that is missing, its file system may be.
func MakeScope(base string, def *agents.Definition) error {
	id, spec := def.Name, def.User
	if def.Dir != "" || def.Branch != "" {
		return nil
	}
	dir := filepath.Join(base, "agents", string(id))
	err := os.Mkdir(dir, 0o700)
	switch {
	case errors.Is(err, os.ErrExist):
		return nil
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%q does not exist: mount its file system, or make it (mkdir -m 711)", filepath.Dir(dir))
	case err != nil:
		return fmt.Errorf("make the scope: %w", err)
	}
	if spec == "" {
		return nil
	}
	owner, err := agentUser(spec, nil)
	if err != nil {
		os.Remove(dir)
		return err
	}
	return os.Lchown(dir, int(owner.UID), int(owner.GID))
}

// ClosedTo says which directory above a mount point is likely to be closed to a
// user.
func ClosedTo(u User, at string) error {
	dir, err := closedAbove(u, at)
	if dir != "" {
		err = fmt.Errorf("%q is closed to the agent's user %d: chmod o+x it, or start the daemon with another --run", dir, u.UID)
	}
	return err
}

// ClosedShown is ClosedTo for what a sandbox shows beside its view.
func ClosedShown(u User, paths []string) error {
	for _, path := range paths {
		if dir, _ := closedAbove(u, path); dir != "" {
			return fmt.Errorf("%q is closed to the agent's user %d, who cannot reach %s: install the program below /usr or /opt", dir, u.UID, path)
		}
	}
	return nil
}

// closedAbove returns the directory above a path that is closed to a User, going by its
// mode; "" is none. bubblewrap runs as that user and goes by the path.
func closedAbove(u User, at string) (string, error) {
	for dir := filepath.Dir(at); ; dir = filepath.Dir(dir) {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			return "", err
		}
		bit := uint32(unix.S_IXOTH)
		switch {
		case st.Uid == u.UID:
			bit = unix.S_IXUSR
		case st.Gid == u.GID:
			bit = unix.S_IXGRP
		}
		if st.Mode&bit == 0 {
			return dir, nil
		}
		if dir == "/" {
			return "", nil
		}
	}
}

// Reach returns an error if the user cannot reach a path of the host. root says that the process may become the user.
func (u User) Reach(name string, root bool) error {
	try := func() error {
		fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	}
	if !root {
		return try()
	}
	return beneath.Caller{UID: u.UID, GID: u.GID}.Do(try)
}
