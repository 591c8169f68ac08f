package branch

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// removedPrefix begins the names of directories that Remove has not emptied yet.
const removedPrefix = "removed-"

// Remove removes the named entries of State, and all below them. The first one leaves its name at once, before anything below
// it is removed. Without names it removes all entries.
//
// State belongs to the agent's user, and was opened as that user's. Processes of that user may move directories to it, also
// while root removes. So Remove lists only a directory that this user owns, and could empty without root, or that has a
// trusted attribute, which only root sets: see MarkOwn. It follows no link and enters no mount. The error is of the first
// directory that stays.
func Remove(state *beneath.Root, names ...string) error {
	top, err := state.Object("")
	if err != nil {
		return err
	}
	defer top.Close()
	st, err := top.Stat()
	if err != nil {
		return err
	}
	r := removal{state: state, top: top.Dir(), owner: st.Uid, private: uint32(os.Geteuid())}
	all, err := state.Names("")
	if err != nil {
		return err
	}
	if len(names) == 0 {
		names = all
	}
	for _, name := range all {
		if strings.HasPrefix(name, removedPrefix) { // of a Remove that was interrupted
			r.rest = append(r.rest, name)
		}
	}
	var failed error
	for _, name := range names {
		if !strings.HasPrefix(name, removedPrefix) {
			failed = cmp.Or(failed, r.entry(r.top, name, true))
		}
	}
	for len(r.rest) > 0 {
		name := r.rest[0]
		r.rest = r.rest[1:]
		err := r.empty(name)
		if gone := r.top.Rmdir(name); gone != nil && gone != unix.ENOENT {
			failed = cmp.Or(failed, err, fmt.Errorf("remove %s: %w", name, gone))
		}
	}
	return failed
}

// OwnMark is an attribute that lets Remove empty a directory of State that is not of the agent's user.
const OwnMark = "trusted.scopefs.branch"

// removal is a Remove. Directories that are not empty move to State first: no depth needs more descriptors.
type removal struct {
	state   *beneath.Root
	top     beneath.Dir // State
	owner   uint32      // of State
	private uint32      // the user of this process
	rest    []string    // directories in State that are to be emptied
	count   int         // names given
}

// entry removes a name of a directory, or moves it to rest. private: the agent's user cannot have put it there.
func (r *removal) entry(dir beneath.Dir, name string, private bool) error {
	switch err := dir.Remove(name); err {
	case nil, unix.ENOENT:
		return nil
	case unix.ENOTEMPTY, unix.EEXIST:
	default:
		return fmt.Errorf("remove %s: %w", name, err)
	}
	f, err := r.open(dir, name, private)
	if err != nil {
		return err
	}
	f.Close()
	for {
		to := fmt.Sprint(removedPrefix, r.count)
		r.count++
		switch err := dir.Rename(name, r.top, to, unix.RENAME_NOREPLACE); err {
		case unix.EEXIST:
		case nil:
			r.rest = append(r.rest, to)
			return nil
		default:
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
}

// empty removes what is in a directory of State.
func (r *removal) empty(name string) error {
	f, err := r.open(r.top, name, true)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	for dir := beneath.NewRoot(f.FD()); ; { // a list of all names could take any memory
		gone := 0
		listed := dir.Each("", func(name string) bool {
			failed := r.entry(f.Dir(), name, r.isPrivate(&st))
			if err = cmp.Or(err, failed); failed == nil {
				gone++
			}
			return true
		})
		if err = cmp.Or(err, listed); gone == 0 {
			return err
		}
	}
}

// isPrivate reports whether a directory is of this process's user alone. Who cannot write to a directory cannot move it to
// another one: rename(2).
func (r *removal) isPrivate(st *beneath.Stat) bool { return st.Uid == r.private && st.Mode&0o077 == 0 }

// open opens a directory whose names may be removed. private: the agent's user cannot have put it there, if isPrivate.
func (r *removal) open(dir beneath.Dir, name string, private bool) (beneath.File, error) {
	at := beneath.NewRoot(dir.Self().FD())
	obj, err := at.Object(name) // no attributes of a mount, which another user may serve
	if err != nil {
		return obj, fmt.Errorf("remove %s: %w", name, err)
	}
	defer obj.Close()
	st, err := obj.Stat()
	if err == nil && st.Uid == r.owner && st.Mode&0o700 != 0o700 && st.IsDir() {
		err = at.Chmod(obj, name, uint32(st.Mode)&0o7777|0o700) // this process may be of an ordinary user
	}
	var f beneath.File
	if err == nil {
		f, err = at.Open(name, unix.O_RDONLY|unix.O_DIRECTORY, st.ID())
	}
	if err != nil {
		return f, fmt.Errorf("remove %s: %w", name, err)
	}
	if st.Uid == r.owner || private && r.isPrivate(&st) {
		return f, nil
	}
	if n, err := f.Getxattr(OwnMark, nil); err == nil && n > 0 {
		return f, nil
	}
	f.Close()
	return f, fmt.Errorf("remove %s: %w", name, &foreignError{st.Uid})
}

// foreignError reports a directory that is not removed, because another user owns it.
type foreignError struct{ uid uint32 }

func (e *foreignError) Error() string {
	return fmt.Sprintf("the directory is of user %d, and not of the branch: remove it, or move it away", e.uid)
}

// Is makes the error ErrForeign.
func (e *foreignError) Is(target error) bool { return target == ErrForeign }

// ErrForeign reports a directory in State that another user owns, and that no daemon has made.
var ErrForeign = errors.New("a directory in the branch is of another user")
