package branch

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// unsettledName is a file of State: a commit or discard has left objects in Upper that the branch does not need.
const unsettledName = "unsettled"

// Unsettled reports whether Settle has something to do. State must not be in use.
func Unsettled(state *beneath.Root) bool {
	_, err := state.Stat(unsettledName)
	return err == nil
}

// unsettle notes that Settle has something to do. Without the note the branch shows its own version of what was taken until the
// next commit or discard.
func (b *Branch) unsettle() {
	if f, err := b.top.Create(unsettledName, unix.O_RDWR, 0o600); err == nil {
		f.Close()
	}
}

// Settle removes from Upper what does not differ from Base, or what a commit has taken and only Base has changed since: the branch
// shows Base there from now on. No client may use the overlay, and it has to be mounted again. same reports that nothing differs:
// the caller can begin a new branch. What cannot be removed stays.
func (b *Branch) Settle(ctx context.Context) (same bool, err error) {
	if b.Held != nil { // a commit does it
		return false, nil
	}
	d, err := b.differ(ctx)
	if err != nil {
		return false, err
	}
	d.release()
	if len(d.entries) == 0 {
		return true, nil
	}
	s := &settling{Branch: b, listed: map[string]bool{}}
	for _, e := range d.entries {
		s.listed[e.Path], s.listed[e.From], s.listed[e.base] = true, true, true
	}
	delete(s.listed, "")
	if err := s.dir(d.top, ""); err != nil {
		return false, err
	}
	if err := b.top.Unlink(unsettledName); err != nil && err != unix.ENOENT {
		return false, err
	}
	return false, nil
}

type settling struct {
	*Branch
	listed map[string]bool // paths of entries
}

// dir removes what is not needed in a directory of Upper that shows the one of Base through.
func (s *settling) dir(n *node, rel string) error {
	for _, k := range n.kids {
		at := beneath.Join(rel, k.name)
		switch {
		case !s.needs(k, at):
			if err := s.remove(k, at); fatal(err) {
				return err
			}
		case k.white || k.own || k.from != "" || !k.st.IsDir(): // below a directory of the branch's own a name hides nothing
		default:
			if err := s.dir(k, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// needs reports whether an object of Upper, or one below it, makes a difference.
func (s *settling) needs(k *node, at string) bool {
	if s.listed[at] || k.err != nil || k.from != "" {
		return true
	}
	for _, below := range k.kids {
		if s.needs(below, beneath.Join(at, below.name)) {
			return true
		}
	}
	return false
}

func (s *settling) remove(k *node, at string) error {
	if !k.white && k.st.IsDir() {
		return s.clearAt(at)
	}
	err := s.unlinkAt(at, false)
	if err == unix.EACCES {
		defer s.Upper.Lift(parentOf(at), unix.S_IRWXU)()
		err = s.unlinkAt(at, false)
	}
	return err
}
