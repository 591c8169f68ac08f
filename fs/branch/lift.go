package branch

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// maxLifted bounds the directories that stay lifted while the branch is compared: each takes a descriptor.
const maxLifted = 1000

// closed reports whether the mode of a directory keeps its owner from the names in it, and it may be lifted.
func (d *differ) closed(st *beneath.Stat) bool {
	const reads = unix.S_IRUSR | unix.S_IXUSR
	return st.IsDir() && st.Mode&reads != reads && len(d.lifted) < maxLifted
}

// names returns the names in a directory of Upper. A closed one is lifted until release.
func (d *differ) names(rel string) ([]string, error) {
	if st, err := d.Upper.Stat(rel); err == nil && d.closed(&st) {
		d.lifted = append(d.lifted, d.Upper.Lift(rel, unix.S_IRUSR|unix.S_IXUSR))
	}
	return d.Upper.Names(rel)
}

// enter lifts a closed directory of Base until release.
func (d *differ) enter(rel string) {
	st, there := d.stat(rel)
	if !there || !d.closed(&st) {
		return
	}
	same := d.untouched(rel)
	restore := d.Base.Lift(rel, unix.S_IRUSR|unix.S_IXUSR)
	d.lifted = append(d.lifted, func() {
		restore()
		d.settleTimes(same)
	})
}

// openBase opens an object of Base for reading, also one that its owner may not read. st gets the new change time.
func (d *differ) openBase(rel string, st *beneath.Stat) (beneath.File, error) {
	f, err := d.Base.Open(rel, unix.O_RDONLY, st.ID())
	if !errors.Is(err, unix.EACCES) {
		return f, err
	}
	same := d.untouched(rel)
	f, err = plan.OpenRead(d.Base, rel, st, true)
	d.settleTimes(same)
	return f, err
}

// untouched returns a path of Base and the directories above it, without those that the host has changed since the fork.
func (d *differ) untouched(rel string) (same []string) {
	for at := rel; ; at = beneath.Parent(at) {
		if st, there := d.stat(at); there && d.since(&st) == "" {
			same = append(same, at)
		}
		if at == "" {
			return same
		}
	}
}

// settleTimes notes the change times that a lift has set: they are no change of the host.
func (d *differ) settleTimes(same []string) {
	for _, rel := range same {
		was := d.base[rel]
		now, err := d.Base.Stat(rel)
		if err != nil || now.ID() != was.ID() || now.Size != was.Size || now.Mode != was.Mode ||
			plan.PlainTime(now.Mtime) != plan.PlainTime(was.Mtime) {
			continue
		}
		if l := (line{ident: plan.IdentOf(&now), Path: []byte(rel)}); l.ident != plan.IdentOf(&was) {
			d.taken.add(l)
			d.settled = append(d.settled, l)
		}
		d.base[rel] = now
	}
}

// release gives the modes of lifted directories back.
func (d *differ) release() {
	for _, restore := range slices.Backward(d.lifted) {
		restore()
	}
	d.lifted = nil
	if len(d.settled) > 0 {
		_ = d.taken.append(d.settled) // without it they conflict
	}
	d.settled = nil
}
