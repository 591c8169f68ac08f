package branch

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// adoptedPrefix begins the names of merged files in the branch, for a moment.
const adoptedPrefix = ".merged-"

// adoptAll gives the branch the merged files that came to Base. It changes the steps: they have what Upper has then. A version
// that a client has made since the commit was staged stays, and conflicts again: see newer.
func (x *execution) adoptAll() error {
	x.newer = map[int]bool{}
	for i := range x.in.steps {
		s := &x.in.steps[i]
		if s.Adopt == "" || x.failed[s.Entry] != "" {
			continue
		}
		adopted, err := x.adopt(s)
		if fatal(err) {
			return err
		}
		if !adopted {
			x.newer[s.Entry] = true
		}
	}
	return nil
}

// adopt exchanges the branch's version of a path with that of Base. It reports whether the branch has that of Base.
func (x *execution) adopt(s *step) (bool, error) {
	rel := s.Path()
	dir, err := x.Merged.Dir(parentOf(rel))
	if err != nil {
		return false, err
	}
	defer dir.Close()
	now, err := dir.Stat(baseOf(rel))
	if err != nil {
		return false, err
	}
	same, err := x.equalsBase(rel, &now)
	if err != nil {
		return false, err
	}
	if _, err := dir.Stat(s.Adopt); err == nil && same {
		return x.adopted(s, dir, &now) // it was interrupted after the exchange
	}
	if err := dir.Unlink(s.Adopt); err != nil && err != unix.ENOENT { // or before it
		return false, err
	}
	if same {
		return x.shows(s, &now), nil
	}
	upper, err := x.Upper.Stat(rel)
	if err != nil || upperID(&upper) != s.Upper || plainTime(now.Ctime) != plainTime(s.Seen) {
		return false, err
	}
	base, err := x.Base.Stat(rel)
	if err != nil {
		return false, err
	}
	to := plan.Target{Root: x.Merged, Dir: dir, Rel: beneath.Join(parentOf(rel), s.Adopt)}
	if err := to.Copy(x.Base, rel, &base); err != nil {
		return false, err
	}
	if base.Ino != s.Other.Ino {
		return false, dir.Unlink(s.Adopt)
	}
	if err := dir.Rename(s.Adopt, dir, baseOf(rel), beneath.RenameExchange); err != nil {
		return false, errors.Join(err, dir.Unlink(s.Adopt))
	}
	return x.adopted(s, dir, nil)
}

// adopted ends an exchange. now are the attributes of the branch's version; nil: they may have changed. A version that a client
// has written meanwhile goes back, unless the client has removed the path since.
func (x *execution) adopted(s *step, dir beneath.Dir, now *beneath.Stat) (bool, error) {
	old, err := dir.Stat(s.Adopt)
	if err != nil {
		return false, err
	}
	if s.Theirs.SameContent(identOf(&old)) {
		return x.shows(s, now), dir.Unlink(s.Adopt)
	}
	if err := dir.Rename(s.Adopt, dir, baseOf(s.Path()), beneath.RenameExchange); err != nil && err != unix.ENOENT {
		return false, err
	}
	return false, dir.Unlink(s.Adopt)
}

// shows sets what Upper has for a path.
func (x *execution) shows(s *step, now *beneath.Stat) bool {
	rel := s.Path()
	upper, err := x.Upper.Stat(rel)
	if err != nil {
		return false
	}
	if now == nil {
		st, err := x.Merged.Stat(rel)
		if err != nil {
			return false
		}
		now = &st
	}
	s.Upper, s.Seen = upperID(&upper), now.Ctime
	return true
}

// equalsBase reports whether the branch's version of a path has the content of Base.
func (x *execution) equalsBase(rel string, st *beneath.Stat) (bool, error) {
	base, err := x.Base.Stat(rel)
	if err != nil || base.Size != st.Size || !base.IsRegular() || !st.IsRegular() {
		return false, err
	}
	a, err := x.Merged.Open(rel, unix.O_RDONLY, st.ID())
	if err != nil {
		return false, err
	}
	defer a.Close()
	b, err := x.Base.Open(rel, unix.O_RDONLY, base.ID())
	if err != nil {
		return false, err
	}
	defer b.Close()
	return sameContent(context.Background(), a, b, st.Size)
}

// noted returns the paths of the branch that are what Base has now, and those that are gone or have become others.
func (x *execution) noted() (now []noted, gone [][]byte) {
	for i := range x.in.steps {
		s := &x.in.steps[i]
		if x.failed[s.Entry] != "" || x.newer[s.Entry] {
			continue
		}
		if len(s.Home) > 0 {
			gone = append(gone, s.Home)
		}
		if s.takes() {
			gone = append(gone, s.At.Path)
		} else {
			now = append(now, noted{s.Path(), s.Path()})
		}
	}
	return now, gone
}
