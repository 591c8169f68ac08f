// Package overlay mounts the overlays that show an agent's directory with changes which are held: a branch of it. One is mounted as
// long as a process uses it, also of the next daemon.
package overlay

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/branch"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Set has the overlays of a daemon's agents.
type Set struct {
	mu      sync.Mutex
	mounted map[scope.ID]*Overlay // and those that are being mounted or unmounted
}

// Overlay is that of one agent's branch.
type Overlay struct {
	id     scope.ID
	of     *Set
	users  int           // guarded by Set.mu
	renew  bool          // likewise: the branch is the directory, and no client can have changed it since
	left   bool          // likewise: it stays mounted for the next daemon
	tried  chan struct{} // closed when the fields below are set
	gone   chan struct{} // closed when it is unmounted
	err    error
	Merged *beneath.Root // what it shows; nil after an error
	Upper  *beneath.Root // what has been changed
	dir    *beneath.Root // what has the changes
	Lock   beneath.File  // of dir: see branch.Use
	shares bool          // the lock is a view's, which keeps it
	bases  *beneath.File // the journal of branch.Bases; nil: the view has it alone, which an earlier daemon has started
}

// workName is a directory in that of an agent's history. The others are of fs/branch.
const workName = "work"

// Mount mounts the overlay of an agent, unless it is mounted. root is the agent's scope, and dir what has the changes. The caller
// calls Leave. live is the lock of dir, if a view has that already; nil: nobody has.
func (s *Set) Mount(host *account.Host, id scope.ID, root, dir *beneath.Root, owner account.User, live *beneath.File) (*Overlay, error) {
	return s.open(id, func(o *Overlay) error { return o.mount(host, root, dir, owner, live) })
}

var errAdopted = errors.New("the overlay of an earlier view is still in use: try again")

// MountForView is Mount for a view. An overlay that an earlier daemon has mounted has no journal for it: then it waits until that one
// is unmounted, as branch.WaitFor does, because a process may still answer about its changes.
func (s *Set) MountForView(host *account.Host, id scope.ID, root, dir *beneath.Root, owner account.User) (*Overlay, error) {
	return branch.WaitFor(func() (*Overlay, error) {
		o, err := s.Mount(host, id, root, dir, owner, nil)
		if err == nil && o.bases == nil {
			o.Leave()
			return nil, errAdopted
		}
		return o, err
	}, errAdopted)
}

// Adopt continues with the overlay that the last daemon has left of an agent, with a device number. lock returns the lock of dir. The
// caller calls Leave.
func (s *Set) Adopt(id scope.ID, dir *beneath.Root, device uint64, lock func() (beneath.File, error)) (*Overlay, error) {
	return s.open(id, func(o *Overlay) error { return o.adopt(dir, device, lock) })
}

func (s *Set) open(id scope.ID, open func(*Overlay) error) (*Overlay, error) {
	for {
		s.mu.Lock()
		o := s.mounted[id]
		joined := o != nil
		switch {
		case o == nil:
			o = &Overlay{id: id, of: s, users: 1, tried: make(chan struct{}), gone: make(chan struct{})}
			if s.mounted == nil {
				s.mounted = map[scope.ID]*Overlay{}
			}
			s.mounted[id] = o
			s.mu.Unlock()
			o.err = open(o)
			close(o.tried)
		case o.users > 0:
			o.users++
			o.renew = false
			s.mu.Unlock()
			<-o.tried
		default:
			s.mu.Unlock()
			<-o.gone
			continue
		}
		if err := o.err; err != nil {
			o.Leave()
			if joined { // the caller may have the lock that the other one lacked
				<-o.gone
				continue
			}
			return nil, fmt.Errorf("changes: held: %w", err)
		}
		return o, nil
	}
}

// Stay makes the overlay stay mounted for the next daemon.
func (o *Overlay) Stay() {
	o.of.mu.Lock()
	defer o.of.mu.Unlock()
	o.left = true
}

// Leave ends a use of the overlay. The last one unmounts it, unless it is to stay. Of nil it does nothing.
func (o *Overlay) Leave() {
	if o == nil {
		return
	}
	o.of.mu.Lock()
	o.users--
	last, renew, left := o.users == 0, o.renew, o.left
	o.of.mu.Unlock()
	if !last {
		return
	}
	if o.Merged != nil {
		o.Merged.Close()
		o.Upper.Close()
		if o.bases != nil {
			o.bases.Close()
		}
		if !left {
			o.unmount(renew)
		}
		o.dir.Close()
		o.Lock.Close()
	}
	o.of.mu.Lock()
	delete(o.of.mounted, o.id)
	o.of.mu.Unlock()
	close(o.gone)
}

// unmount unmounts the overlay, and frees the lock of dir.
func (o *Overlay) unmount(renew bool) {
	err := beneath.Unmount(o.dir, branch.MergedName)
	if err == nil && renew {
		err = renewBranch(o.dir)
	}
	if err != nil {
		slog.Warn("end the overlay of held changes", "agent", string(o.id), "err", err)
	}
	if !o.shares {
		_ = o.Lock.Unlock() // a process that starts meanwhile would keep it for a moment
	}
}

// adopt continues with the overlay of a view that the last daemon has left.
func (o *Overlay) adopt(dir *beneath.Root, device uint64, lock func() (beneath.File, error)) (err error) {
	var opened []*beneath.Root
	defer func() {
		if err != nil {
			o.Merged = nil
			for _, root := range opened {
				root.Close()
			}
		}
	}()
	if o.Merged, err = dir.Mounted(branch.MergedName); err != nil {
		return err
	}
	opened = append(opened, o.Merged)
	if now, err := o.Device(); err != nil || now != device {
		return cmp.Or(err, errors.New("its overlay is not mounted any more"))
	}
	for name, root := range map[string]**beneath.Root{"": &o.dir, branch.UpperName: &o.Upper} {
		f, err := dir.Object(name)
		if err != nil {
			return err
		}
		*root = beneath.NewRoot(f.FD())
		opened = append(opened, *root)
	}
	if o.Lock, err = lock(); err != nil {
		return err
	}
	moved, err := branch.MovedIn(dir)
	if err == nil {
		err = branch.Redirect(o.Upper, moved) // the last daemon may have ended before it had done that
	}
	if err != nil {
		o.Lock.Close()
	}
	return err
}

// Device returns the device number of the overlay.
func (o *Overlay) Device() (uint64, error) { return o.Merged.Device() }

// Unmount unmounts an overlay that no daemon continues with.
func Unmount(device uint64) error {
	all, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("overlay"))
	for _, m := range all {
		if strings.HasPrefix(m.Source, sourcePrefix) && unix.Mkdev(uint32(m.Major), uint32(m.Minor)) == device {
			err = errors.Join(err, unmountAt(m.Mountpoint, device))
		}
	}
	return err
}

// unmountAt unmounts what is mounted at a path, if that has the device number. The agent's user may move the path.
func unmountAt(path string, device uint64) error {
	dir, err := beneath.OpenDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	top, err := dir.Mounted(filepath.Base(path))
	if err != nil {
		return err
	}
	defer top.Close()
	if now, err := top.Device(); err != nil || now != device {
		return err
	}
	_, err = beneath.UnmountTop(dir, filepath.Base(path))
	return err
}

// UnmountLeft unmounts the overlays of held changes of a base, wherever they are, which no daemon has any more. Those of releases whose
// source names no base it takes from the base's directory of histories alone.
func UnmountLeft(base, histories string) error {
	source, err := sourceOf(base)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	histories, none := filepath.EvalSymlinks(histories)
	all, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("overlay"))
	for _, m := range all {
		if m.Source == source || m.Source == sourcePrefix && none == nil && strings.HasPrefix(m.Mountpoint, histories+"/") {
			err = errors.Join(err, unmountAt(m.Mountpoint, unix.Mkdev(uint32(m.Major), uint32(m.Minor))))
		}
	}
	return err
}

const sourcePrefix = "scopefs"

// sourceOf returns what mount(8) shows as the source of the overlays of a base, by whatever name the base is reached.
func sourceOf(base string) (string, error) {
	info, err := os.Stat(base)
	if err != nil {
		return "", fmt.Errorf("base: %w", err)
	}
	st := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%s:%x:%x", sourcePrefix, st.Dev, st.Ino), nil
}

// mount mounts the overlay in dir.
func (o *Overlay) mount(host *account.Host, root, dir *beneath.Root, owner account.User, live *beneath.File) (err error) {
	if o.shares = live != nil; o.shares {
		o.Lock, err = live.Dup()
	} else {
		o.Lock, err = branch.WaitFor(func() (beneath.File, error) { return branch.Use(dir) })
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			if !o.shares {
				_ = o.Lock.Unlock()
			}
			o.Lock.Close()
		}
	}()
	if live == nil { // else the view has its upper layer open
		if err := MakeBranch(root, dir, owner); err != nil {
			return err
		}
	}
	bases, err := branch.CreateBases(dir, int(owner.UID), int(owner.GID))
	if err != nil {
		return fmt.Errorf("bases: %w", err)
	}
	o.bases = &bases
	defer func() {
		if err != nil {
			bases.Close()
		}
	}()
	if err := beneath.Unmount(dir, branch.MergedName); err != nil { // of a daemon that was killed
		return fmt.Errorf("%s: %w", branch.MergedName, err)
	}
	var dirs [3]*beneath.Root
	for i, name := range []string{branch.UpperName, workName, branch.MergedName} {
		f, err := dir.Object(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		dirs[i] = beneath.NewRoot(f.FD())
		defer dirs[i].Close()
	}
	moved, err := branch.MovedIn(dir)
	if err == nil {
		err = branch.Redirect(dirs[0], moved)
	}
	if err != nil {
		return err
	}
	top, err := dir.Object("") // dir is the caller's
	if err != nil {
		return err
	}
	upper, err := dirs[0].Object("")
	if err != nil {
		top.Close()
		return err
	}
	o.dir, o.Upper = beneath.NewRoot(top.FD()), beneath.NewRoot(upper.FD())
	source, err := sourceOf(host.Paths.Base)
	if err == nil {
		o.Merged, err = beneath.Overlay{Lower: root, Upper: dirs[0], Work: dirs[1], Source: source, User: !host.Root}.Mount(dirs[2])
	}
	if err != nil {
		o.dir.Close()
		o.Upper.Close()
	}
	return err
}

// Detach returns what a view of the overlay has beside it, after three files that it has not: the upper layer as a detached mount,
// and the journal of bases.
func (o *Overlay) Detach() ([]*os.File, error) {
	fd, err := o.Upper.Detach()
	if err != nil {
		return nil, err
	}
	upper := os.NewFile(uintptr(fd), "upper")
	bases, err := o.bases.Dup()
	if err != nil {
		upper.Close()
		return nil, err
	}
	return []*os.File{nil, nil, nil, upper, os.NewFile(uintptr(bases.FD()), "bases")}, nil
}

// renewBranch removes what a branch has beside its merged directory. The next overlay is of a new one. A branch whose commit is
// not finished stays: it has objects of the agent's directory.
func renewBranch(dir *beneath.Root) error {
	if err := branch.Idle(dir); err != nil {
		return err
	}
	return branch.Remove(dir, branch.UpperName, "taken", "stage", "bases", "dropped", "unsettled", workName, "stamp")
}

// MakeBranch makes what is missing in dir.
func MakeBranch(root, dir *beneath.Root, owner account.User) error {
	// Without changes the fork is now: what the directory changed since is no conflict. A daemon that was killed may have begun one.
	empty := true
	err := dir.Each(branch.UpperName, func(string) bool { empty = false; return false })
	if empty && (err == nil || errors.Is(err, beneath.ErrStale)) {
		if err := renewBranch(dir); err != nil && err != branch.ErrUnfinished {
			return err
		}
	}
	d, err := dir.Dir("")
	if err != nil {
		return err
	}
	defer d.Close()
	scope, err := root.Stat("")
	if err != nil {
		return err
	}
	if _, err := d.Stat(branch.UpperName); err != nil {
		if err := branch.Fork(dir); err != nil {
			return err
		}
		for _, name := range []string{"stamp", "stage"} {
			if err := Give(dir, name, owner, 0o700, false); err != nil {
				return err
			}
		}
	}
	for _, made := range []struct {
		name string
		mode uint32
		as   account.User
	}{
		{workName, 0o700, account.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}},
		{branch.MergedName, 0o700, owner},
		{branch.UpperName, uint32(scope.Mode) & 0o7777, account.User{UID: scope.Uid, GID: scope.Gid}},
	} {
		err := d.Mkdir(made.name, 0o700)
		if err == nil {
			mark := made.name == branch.UpperName && made.as.UID != owner.UID
			err = Give(dir, made.name, made.as, made.mode, mark)
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) { // a group that is none of this user's: chown(2), user_namespaces(7)
				made.as.GID = uint32(os.Getegid())
				err = Give(dir, made.name, made.as, made.mode&^unix.S_ISGID, mark)
			}
		}
		if err != nil && err != unix.EEXIST {
			return fmt.Errorf("%s: %w", made.name, err)
		}
	}
	return nil
}

// Give gives a new object of dir to a user: a directory of mode 0700, or a file that is empty and has one name. The user whom
// dir belongs to may have exchanged it since it was made, but not for a directory that is closed to that user: rename(2).
// mark lets branch.Remove empty the directory.
func Give(dir *beneath.Root, name string, to account.User, mode uint32, mark bool) error {
	f, err := dir.Object(name)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err == nil && !isNew(&st) {
		err = fmt.Errorf("%s: %w", name, beneath.ErrStale)
	}
	if err == nil && mark {
		err = branch.MarkOwn(dir, name, st.ID())
	}
	if err == nil {
		err = f.Chown(int(to.UID), int(to.GID))
	}
	if err != nil {
		return err
	}
	return f.Chmod(mode)
}

// isNew reports whether only this process's user can have made an object.
func isNew(st *beneath.Stat) bool {
	if st.IsDir() {
		return int(st.Uid) == os.Geteuid() && st.Mode&0o077 == 0
	}
	return st.IsRegular() && st.Nlink == 1 && st.Size == 0
}

// Answered does what an answer of the process that has the branch open asks for: the overlay has to find the directories that
// a commit has moved, and a branch that is the directory begins again when nobody uses it.
func (o *Overlay) Answered(reply json.RawMessage) error {
	var r query.Reply
	if err := json.Unmarshal(reply, &r); err != nil {
		return err
	}
	if r.Same {
		o.of.mu.Lock()
		o.renew = o.users == 1
		o.of.mu.Unlock()
	}
	return branch.Redirect(o.Upper, r.Moved)
}
