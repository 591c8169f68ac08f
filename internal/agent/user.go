package agent

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	osuser "os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/proc"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/beneath"
)

// user has the ids with which an agent's view and sandbox run.
type user struct{ uid, gid uint32 }

// agentUser returns the user of a definition, else the owner of the scope.
func agentUser(spec string, root *beneath.Root) (user, error) {
	if spec == "" {
		f, err := root.Object("")
		if err != nil {
			return user{}, err
		}
		defer f.Close()
		st, err := f.Stat()
		return user{st.Uid, st.Gid}, err
	}
	name, group, both := strings.Cut(spec, ":")
	uid, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		u, err := osuser.Lookup(name)
		if err != nil {
			return user{}, fmt.Errorf("user %q: %w: create it, or give a number", name, err)
		}
		if uid, err = strconv.ParseUint(u.Uid, 10, 32); err != nil {
			return user{}, err
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
			return user{}, fmt.Errorf("group %q: %w: create it, or give a number", group, err)
		}
		if gid, err = strconv.ParseUint(g.Gid, 10, 32); err != nil {
			return user{}, err
		}
	}
	return user{uint32(uid), uint32(gid)}, nil
}

// UserOf returns the user and group of an agent's processes.
func (s *Shared) UserOf(id scope.ID) (uid, gid uint32, err error) {
	def, err := s.Registry.Definition(id)
	if err != nil {
		return 0, 0, err
	}
	root, err := def.OpenRoot(s.Paths.Base)
	if err != nil {
		return 0, 0, err
	}
	defer root.Close()
	owner, err := s.scopeUser(def.Definition, root)
	return owner.uid, owner.gid, err
}

// IsOf reports whether the agent runs as a user: the view that is mounted, else the one
// that would be.
func (a *Agent) IsOf(uid uint32) bool {
	if v := a.currentView(); v != nil {
		if served, owner := v.served(); served != 0 {
			return owner.uid == uid
		}
	}
	owner, _, err := a.UserOf(a.id)
	return err == nil && owner == uid
}

// openScope opens an agent's directory and returns the agent's user. With dir: it checks
// that the directory is apart from other files, that no other user chose it, and that the
// user may enter it.
func (s *Shared) openScope(def *agents.Definition) (*beneath.Root, user, error) {
	root, err := def.OpenRoot(s.Paths.Base)
	if err != nil {
		return nil, user{}, err
	}
	owner, err := s.scopeUser(def, root)
	if err == nil && def.Dir != "" {
		err = s.apart(def, root)
		if err == nil && s.Root && def.User == "" {
			err = chosen(def.Dir, owner, "set user")
		}
		if err == nil && s.Root {
			err = enterable(def.Dir, root, owner)
		}
	}
	if err != nil {
		root.Close()
		return nil, user{}, err
	}
	return root, owner, nil
}

// scopeUser returns the user of the agent of an open scope. The daemon of an ordinary user
// serves a dir: with that user's own id, 0 in the user namespace, whoever owns the
// directory.
func (s *Shared) scopeUser(def *agents.Definition, root *beneath.Root) (user, error) {
	if def.Dir != "" && def.User == "" && !s.Root {
		return user{}, nil
	}
	return agentUser(def.User, root)
}

// chosen returns an error if a user other than root and the owner of a dir: can put another
// directory in its place. The agent would run as the owner of the other directory, and its
// tools would give that owner's files to this user.
func chosen(name string, owner user, remedy string) error {
	for at := name; at != "/"; {
		at = filepath.Dir(at)
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil {
			return fmt.Errorf("dir: %w", err)
		}
		others := uint32(unix.S_IWOTH)
		if st.Gid != 0 && st.Gid != owner.uid { // a group with the number of a user is that user's own
			others |= unix.S_IWGRP
		}
		// Of a sticky directory, users replace their own entries alone (inode(7)).
		if st.Uid != 0 && st.Uid != owner.uid || st.Mode&others != 0 && st.Mode&unix.S_ISVTX == 0 {
			return fmt.Errorf("dir: %q belongs to user %d, and others than that user can replace it in %q: %s", name, owner.uid, at, remedy)
		}
	}
	return nil
}

// enterable returns an error unless the user may list the directory.
func enterable(name string, root *beneath.Root, u user) error {
	return beneath.Caller{UID: u.uid, GID: u.gid}.Do(func() error {
		fd, err := unix.Openat(root.FD(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("dir: %q: agent's user %d: %w: open it to that user, or set user", name, u.uid, err)
		}
		return unix.Close(fd)
	})
}

// makeScope makes {base}/agents/{id} if it is missing, and no directory that dir: names.
// It does not make {base}/agents: where that is missing, its file system may be.
func makeScope(base string, def *agents.Definition) error {
	id, spec := def.Name, def.User
	if def.Dir != "" {
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
	return os.Lchown(dir, int(owner.uid), int(owner.gid))
}

// closedTo says which directory above a mount point is likely to be closed to a
// user.
func closedTo(u user, at string) error {
	dir, err := closedAbove(u, at)
	if dir != "" {
		err = fmt.Errorf("%q is closed to the agent's user %d: chmod o+x it, or start the daemon with another --run", dir, u.uid)
	}
	return err
}

// closedShown is closedTo for what a sandbox shows beside its view.
func closedShown(u user, paths []string) error {
	for _, path := range paths {
		if dir, _ := closedAbove(u, path); dir != "" {
			return fmt.Errorf("%q is closed to the agent's user %d, who cannot reach %s: install the program below /usr or /opt", dir, u.uid, path)
		}
	}
	return nil
}

// closedAbove returns the directory above a path that is closed to a user, going by its
// mode; "" is none. bubblewrap runs as that user and goes by the path.
func closedAbove(u user, at string) (string, error) {
	for dir := filepath.Dir(at); ; dir = filepath.Dir(dir) {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			return "", err
		}
		bit := uint32(unix.S_IXOTH)
		switch {
		case st.Uid == u.uid:
			bit = unix.S_IXUSR
		case st.Gid == u.gid:
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

// groupsOf returns the supplementary groups of a process; proc_pid_status(5).
func groupsOf(pid uint32) ([]uint32, error) {
	status, err := proc.ReadTable(int(pid), "status")
	words := status.Words("Groups")
	if err != nil || words == nil {
		return nil, cmp.Or(err, error(syscall.ESRCH))
	}
	groups := []uint32{}
	for _, word := range words {
		g, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return nil, err
		}
		groups = append(groups, uint32(g))
	}
	return groups, nil
}

// viewCaps are the capabilities that a view is started with; it drops what it
// does not need when it has made the scope its root. It enters the scope whatever
// mode the directory has: CAP_DAC_READ_SEARCH.
var viewCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_DAC_READ_SEARCH}
