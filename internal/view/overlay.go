package view

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/branch"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// overlays are those of the agents whose changes are held. An overlay is mounted as long as a process uses it.
type overlays struct {
	mu      sync.Mutex
	mounted map[scope.ID]*overlay // and those that are being mounted or unmounted
}

// overlay is that of one agent's branch.
type overlay struct {
	id     scope.ID
	of     *overlays
	users  int           // guarded by overlays.mu
	renew  bool          // likewise: the branch is the directory, and no client can have changed it since
	tried  chan struct{} // closed when the fields below are set
	gone   chan struct{} // closed when it is unmounted
	err    error
	merged *beneath.Root
	upper  *beneath.Root
	dir    *beneath.Root // what has the changes
	used   beneath.File  // the lock of dir
	bases  beneath.File  // the journal of branch.Bases
}

// The names in the directory of an agent's history. The others are of fs/branch.
const (
	upperName  = "upper"
	workName   = "work"
	mergedName = "merged"
)

// overlay mounts the overlay of an agent, unless it is mounted. root is the agent's scope, and dir what has the changes. The
// caller calls leave. live has the lock of dir already; nil: nobody has.
func (h *Host) overlay(id scope.ID, root, dir *beneath.Root, owner account.User, live *heldDir) (*overlay, error) {
	all := &h.overlays
	for {
		all.mu.Lock()
		o := all.mounted[id]
		switch {
		case o == nil:
			o = &overlay{id: id, of: all, users: 1, tried: make(chan struct{}), gone: make(chan struct{})}
			if all.mounted == nil {
				all.mounted = map[scope.ID]*overlay{}
			}
			all.mounted[id] = o
			all.mu.Unlock()
			o.err = o.mount(root, dir, owner, !h.Root, live)
			close(o.tried)
		case o.users > 0:
			o.users++
			o.renew = false
			all.mu.Unlock()
			<-o.tried
		default:
			all.mu.Unlock()
			<-o.gone
			continue
		}
		if o.err != nil {
			err := o.err
			o.leave()
			return nil, fmt.Errorf("changes: held: %w", err)
		}
		return o, nil
	}
}

// leave ends a use of the overlay. The last one unmounts it.
func (o *overlay) leave() {
	if o == nil {
		return
	}
	o.of.mu.Lock()
	o.users--
	last, renew := o.users == 0, o.renew
	o.of.mu.Unlock()
	if !last {
		return
	}
	if o.merged != nil {
		o.merged.Close()
		o.upper.Close()
		o.bases.Close()
		defer o.used.Close()
		defer func() { _ = o.used.Unlock() }() // a process that starts meanwhile would keep it for a moment
		defer o.dir.Close()
		err := beneath.Unmount(o.dir, mergedName)
		if err == nil && renew {
			err = renewBranch(o.dir)
		}
		if err != nil {
			slog.Warn("end the overlay of held changes", "agent", string(o.id), "err", err)
		}
	}
	o.of.mu.Lock()
	delete(o.of.mounted, o.id)
	o.of.mu.Unlock()
	close(o.gone)
}

// mount mounts the overlay in dir.
func (o *overlay) mount(root, dir *beneath.Root, owner account.User, user bool, live *heldDir) (err error) {
	if live != nil {
		o.used, err = live.used.Dup()
	} else {
		o.used, err = waitFor(func() (beneath.File, error) { return branch.Use(dir) })
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = o.used.Unlock()
			o.used.Close()
		}
	}()
	if live == nil { // else the view has its upper layer open
		if err := makeBranch(root, dir, owner); err != nil {
			return err
		}
	}
	if o.bases, err = branch.CreateBases(dir, int(owner.UID), int(owner.GID)); err != nil {
		return fmt.Errorf("bases: %w", err)
	}
	defer func() {
		if err != nil {
			o.bases.Close()
		}
	}()
	if err := beneath.Unmount(dir, mergedName); err != nil { // of a daemon that was killed
		return fmt.Errorf("%s: %w", mergedName, err)
	}
	var dirs [3]*beneath.Root
	for i, name := range []string{upperName, workName, mergedName} {
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
	o.dir, o.upper = beneath.NewRoot(top.FD()), beneath.NewRoot(upper.FD())
	o.merged, err = beneath.Overlay{Lower: root, Upper: dirs[0], Work: dirs[1], User: user}.Mount(dirs[2])
	if err != nil {
		o.dir.Close()
		o.upper.Close()
	}
	return err
}

// killedTime bounds the wait for a lock: a process of a command that was killed has it until it ends.
const killedTime = 2 * time.Second

// waitFor calls open until it returns another error than that of a lock, at most for killedTime.
func waitFor[T any](open func() (T, error)) (T, error) {
	for end := time.Now().Add(killedTime); ; time.Sleep(killedTime / 200) {
		t, err := open()
		busy := errors.Is(err, branch.ErrUsed) || errors.Is(err, branch.ErrBusy) || errors.Is(err, history.ErrBusy)
		if !busy || !time.Now().Before(end) {
			return t, err
		}
	}
}

// detach returns what a view of the overlay has beside it, after three files that it has not: the upper layer as a detached mount,
// and the journal of bases.
func (o *overlay) detach() ([]*os.File, error) {
	upper, err := o.upper.Detach()
	if err != nil {
		return nil, err
	}
	bases, err := o.bases.Dup()
	if err != nil {
		unix.Close(upper)
		return nil, err
	}
	return []*os.File{nil, nil, nil, os.NewFile(uintptr(upper), "upper"), os.NewFile(uintptr(bases.FD()), "bases")}, nil
}

// renewBranch removes what a branch has beside its merged directory. The next overlay is of a new one. A branch whose commit is
// not finished stays: it has objects of the agent's directory.
func renewBranch(dir *beneath.Root) error {
	if err := branch.Idle(dir); err != nil {
		return err
	}
	return branch.Remove(dir, upperName, "taken", "stage", "bases", "dropped", workName, "stamp")
}

// makeBranch makes what is missing in dir.
func makeBranch(root, dir *beneath.Root, owner account.User) error {
	// Without changes the fork is now: what the directory changed since is no conflict. A daemon that was killed may have begun one.
	empty := true
	err := dir.Each(upperName, func(string) bool { empty = false; return false })
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
	if _, err := d.Stat(upperName); err != nil {
		if err := branch.Fork(dir); err != nil {
			return err
		}
		for _, name := range []string{"stamp", "stage"} {
			if err := give(dir, name, owner, 0o700, false); err != nil {
				return err
			}
		}
	}
	for _, made := range []struct {
		name string
		mode uint32
		as   account.User
	}{
		{workName, 0o700, account.User{UID: uint32(unix.Geteuid()), GID: uint32(unix.Getegid())}},
		{mergedName, 0o700, owner},
		{upperName, uint32(scope.Mode) & 0o7777, account.User{UID: scope.Uid, GID: scope.Gid}},
	} {
		err := d.Mkdir(made.name, 0o700)
		if err == nil {
			err = give(dir, made.name, made.as, made.mode, made.name == upperName && made.as.UID != owner.UID)
		}
		if err != nil && err != unix.EEXIST {
			return fmt.Errorf("%s: %w", made.name, err)
		}
	}
	return nil
}

// give gives a new object of dir to a user: a directory of mode 0700, or a file that is empty and has one name. The user whom
// dir belongs to may have exchanged it since it was made, but not for a directory that is closed to that user: rename(2).
// mark lets branch.Remove empty the directory.
func give(dir *beneath.Root, name string, to account.User, mode uint32, mark bool) error {
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
		return int(st.Uid) == unix.Geteuid() && st.Mode&0o077 == 0
	}
	return st.IsRegular() && st.Nlink == 1 && st.Size == 0
}

// answered does what an answer of the process that has the branch open asks for: the overlay has to find the directories that
// a commit has moved, and a branch that is the directory begins again when nobody uses it.
func (o *overlay) answered(reply json.RawMessage) error {
	var r query.Reply
	if err := json.Unmarshal(reply, &r); err != nil {
		return err
	}
	if r.Same {
		o.of.mu.Lock()
		o.renew = o.users == 1
		o.of.mu.Unlock()
	}
	return branch.Redirect(o.upper, r.Moved)
}
