package beneath

import (
	"slices"

	"golang.org/x/sys/unix"
)

// Lift lets the owner use a path that modes keep him from: he may search and write each directory above the object, and with mode has
// these bits of the object as well. restore gives the modes back, unless somebody else has set others. What this process does
// not own stays as it is: the caller's operation then fails as before.
func (r *Root) Lift(rel string, mode uint32) (restore func()) {
	var lifted []func()
	lift := func(at string, bits uint32, dir bool) {
		f, err := r.Object(at)
		if err != nil {
			return
		}
		st, err := f.Stat()
		was := uint32(st.Mode) & 0o7777
		if err != nil || st.IsLink() || dir && !st.IsDir() || was&bits == bits || r.chmod(f, at, was|bits) != nil {
			f.Close()
			return
		}
		lifted = append(lifted, func() {
			if now, err := f.Stat(); err == nil && uint32(now.Mode)&0o7777 == was|bits {
				_ = r.chmod(f, at, was) // the owner could set it before
			}
			f.Close()
		})
	}
	for i := range len(rel) {
		if rel[i] == '/' {
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

// chmod sets the mode of an object that Object has opened; before Linux 6.6 that of a file by its name: see Dir.Chmod.
func (r *Root) chmod(f File, rel string, mode uint32) error {
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
