package view

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/branch"
	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/hold"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/scope/beneath/mounts"
)

// The directories that earlier releases have beside hold.UpperName: they held changes in an overlay of the kernel.
const (
	formerMerged = "merged"
	formerWork   = "work"
)

var errFormer = errors.New("the release of scopefs that was here before has held changes in another way: commit or discard them with it " +
	"(scopefs commit, scopefs discard, scopefs branch remove)")

// makeLayers makes what is missing in the directory of held changes. root is the scope.
func makeLayers(root, dir *beneath.Root, owner account.User) error {
	if err := removeFormer(dir); err != nil {
		return err
	}
	d, err := dir.Dir("")
	if err != nil {
		return err
	}
	defer d.Close()
	if _, err := d.Stat(hold.UpperName); err == nil {
		return nil
	}
	scope, err := root.Stat("")
	if err == nil {
		err = idle(dir)
	}
	if err != nil {
		return err
	}
	err = branch.Remove(dir, branch.StampName, hold.StageName, hold.JournalName, "taken", "bases", "dropped", hold.KeptName)
	if err != nil {
		return err // of a daemon that was killed
	}
	if err := fork(d); err != nil {
		return err
	}
	for _, name := range []string{branch.StampName, hold.StageName} {
		if err := give(dir, name, owner, 0o700, false); err != nil {
			return err
		}
	}
	mode, as := uint32(scope.Mode)&0o7777, account.User{UID: scope.Uid, GID: scope.Gid}
	if err = d.Mkdir(hold.UpperName, 0o700); err == nil {
		mark := as.UID != owner.UID
		err = give(dir, hold.UpperName, as, mode, mark)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) { // a group that is none of this user's: chown(2), user_namespaces(7)
			as.GID = uint32(os.Getegid())
			err = give(dir, hold.UpperName, as, mode&^unix.S_ISGID, mark)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", hold.UpperName, err)
	}
	return nil
}

// fork begins a branch in a directory, where it makes what the branch needs but hold.UpperName.
func fork(top beneath.Dir) error {
	f, err := top.Create(branch.StampName, unix.O_RDWR, 0o600)
	if err == nil {
		err = branch.Stamp(f)
		f.Close()
	}
	if err != nil {
		return fmt.Errorf("fork: %w", err)
	}
	if err = top.Mkdir(hold.StageName, 0o700); err == nil {
		err = top.Sync()
	}
	return err
}

// use locks the directory of a branch for the view that has the layers, as long as the file is open. It returns branch.ErrUsed if another
// process has it.
func use(state *beneath.Root) (beneath.File, error) {
	top, err := state.Dir("")
	if err != nil {
		return beneath.File{}, err
	}
	defer top.Close()
	f, err := journal.OpenOrCreate(top, "used")
	if err != nil {
		return f, err
	}
	if err = f.TryLock(); err == unix.EWOULDBLOCK {
		err = branch.ErrUsed
	}
	if err != nil {
		f.Close()
	}
	return f, err
}

// errUnfinished reports a commit that branch.Branch.Resume has to finish: the stage has objects of the scope.
var errUnfinished = errors.New("a commit is not finished")

// idle returns branch.ErrBusy if a process has the branch open, and errUnfinished. Without an error its directory can be removed.
func idle(state *beneath.Root) error {
	if _, err := state.Stat(branch.IntentName); err == nil {
		return errUnfinished
	} else if !errors.Is(err, beneath.ErrStale) {
		return err
	}
	st, err := state.Stat(branch.StampName)
	if errors.Is(err, beneath.ErrStale) {
		return nil
	}
	if err != nil {
		return err
	}
	f, err := state.Open(branch.StampName, unix.O_RDONLY, st.ID())
	if err != nil {
		return err
	}
	defer f.Close()
	if err = f.TryLock(); err == unix.EWOULDBLOCK {
		return branch.ErrBusy
	}
	return errors.Join(err, f.Unlock())
}

// removeFormer removes what an earlier release has left that held nothing. It returns errFormer if that has held something.
func removeFormer(dir *beneath.Root) error {
	if _, err := dir.Stat(formerWork); errors.Is(err, beneath.ErrStale) {
		return nil
	} else if err != nil {
		return err
	}
	if err := mounts.Unmount(dir, formerMerged); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s: %w", formerMerged, err)
	}
	empty := true
	err := dir.Each(hold.UpperName, func(string) bool { empty = false; return false })
	switch {
	case err != nil && !errors.Is(err, beneath.ErrStale):
		return err
	case !empty:
		return errFormer
	}
	if err := idle(dir); err != nil {
		return err
	}
	return branch.Remove(dir, hold.UpperName, "taken", hold.StageName, "bases", "dropped", "unsettled", formerMerged, formerWork,
		branch.StampName)
}

// give gives a new object of dir to a user: a directory of mode 0700, or a file that is empty and has one name. The user whom
// dir belongs to may have exchanged it since it was made, but not for a directory that is closed to that user: rename(2).
// mark lets branch.Remove empty the directory.
func give(dir *beneath.Root, name string, to account.User, mode uint32, mark bool) error {
	f, st, err := dir.OpenAny(name, unix.O_RDONLY) // fchmod(2) takes no O_PATH, and fchmodat2(2) is of Linux 6.6
	if err != nil {
		return err
	}
	defer f.Close()
	if !isNew(&st) {
		err = fmt.Errorf("%s: %w", name, beneath.ErrStale)
	}
	if err == nil && mark {
		err = markOwn(dir, name, st.ID())
	}
	if err == nil {
		err = f.Chown(int(to.UID), int(to.GID))
	}
	if err != nil {
		return err
	}
	return f.Chmod(mode)
}

// markOwn lets branch.Remove empty a directory that is not of the agent's user.
func markOwn(dir *beneath.Root, name string, id beneath.FileID) error {
	f, err := dir.Open(name, unix.O_RDONLY|unix.O_DIRECTORY, id)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Setxattr(branch.OwnMark, []byte("1"), 0)
}

// isNew reports whether only this process's user can have made an object.
func isNew(st *beneath.Stat) bool {
	if st.IsDir() {
		return int(st.Uid) == os.Geteuid() && st.Mode&0o077 == 0
	}
	return st.IsRegular() && st.Nlink == 1 && st.Size == 0
}
