package beneath

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// Lift lets the owner use a path that modes keep him from: he may search and write each directory above the object, and with mode has
// these bits of the object as well. restore gives the modes back, unless somebody else has set others. What this process does
// not own stays as it is: the caller's operation then fails as before.
func (r *Root) Lift(rel string, mode uint32) (restore func()) {
	return r.LiftNoted(rel, mode, func(Lifted) error { return nil })
}

// Lifting calls do, and again with the modes of Lift if that fails with EACCES.
func (r *Root) Lifting(rel string, mode uint32, do func() error) error {
	err := do()
	if errors.Is(err, unix.EACCES) {
		defer r.Lift(rel, mode)()
		err = do()
	}
	return err
}

// Lifted is a mode that Lift sets.
type Lifted struct {
	Rel      string
	ID       FileID
	Was, Now uint32
}

// LiftNoted is Lift that calls note before it sets a mode, which stays as it is after an error: [Root.GiveBack] restores it once this
// process is dead.
func (r *Root) LiftNoted(rel string, mode uint32, note func(Lifted) error) (restore func()) {
	var lifted []func()
	lift := func(at string, bits uint32, dir bool) {
		f, err := r.Object(at)
		if err != nil {
			return
		}
		st, err := f.Stat()
		was := uint32(st.Mode) & 0o7777
		l := Lifted{at, st.ID(), was, was | bits}
		if err != nil || st.IsLink() || dir && !st.IsDir() || was == l.Now || note(l) != nil || r.Chmod(f, at, l.Now) != nil {
			f.Close()
			return
		}
		lifted = append(lifted, func() {
			r.giveBack(f, l)
			f.Close()
		})
	}
	for i := range len(rel) {
		if i == 0 || rel[i] == '/' {
			lift(rel[:i], unix.S_IRWXU, true)
		}
	}
	if mode != 0 {
		lift(rel, mode, false)
	}
	return func() {
		for _, one := range slices.Backward(lifted) {
			one()
		}
	}
}

// GiveBack restores a mode that Lift has set, if the object is still at the path and has that mode.
func (r *Root) GiveBack(l Lifted) {
	f, err := r.Object(l.Rel)
	if err != nil {
		return
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.ID().Ino == l.ID.Ino && st.ID().Birth == l.ID.Birth { // the device number may be another
		r.giveBack(f, l)
	}
}

func (r *Root) giveBack(f File, l Lifted) {
	if st, err := f.Stat(); err == nil && uint32(st.Mode)&0o7777 == l.Now {
		_ = r.Chmod(f, l.Rel, l.Was) // the owner could set it before
	}
}

// Chmod sets the mode of an object that Object has opened; before Linux 6.6 that of a file by its name: see Dir.Chmod.
func (r *Root) Chmod(f File, rel string, mode uint32) error {
	err := f.Chmod(mode)
	if err != unix.EOPNOTSUPP {
		return err
	}
	dir, err := r.Dir(Parent(rel))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Chmod(Base(rel), mode)
}
