package branch

import (
	"cmp"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/scope/beneath"
)

// execution performs the steps of an intent.
type execution struct {
	*Branch
	in       *intent
	entries  []Entry // nil for Resume
	progress func(done, total int)
	stage    beneath.Dir
	ours     map[uint64]bool // objects that come to places by the steps
	failed   map[int]string  // entries, and why
	newer    map[int]bool    // merged entries that a client of the branch has changed again
}

// conflict is why a step is not done.
type conflict string

func (c conflict) Error() string { return string(c) }

func (x *execution) run() (err error) {
	if x.stage, err = x.State.Dir(stageName); err != nil {
		return err
	}
	defer x.stage.Close()
	x.ours = map[uint64]bool{}
	for _, s := range x.in.Steps {
		if s.New != 0 {
			x.ours[s.New] = true
		}
	}
	for i, s := range x.in.Steps {
		if x.progress != nil {
			x.progress(i, len(x.in.Steps))
		}
		err := x.step(&s)
		if errors.Is(err, unix.EACCES) {
			err = x.forced(&s)
		}
		if fatal(err) {
			return fmt.Errorf("%s: %w", s.Path, err) // Resume goes on
		}
		var c conflict
		if err != nil && x.failed[s.Entry] == "" {
			if x.failed[s.Entry] = whyCannot + err.Error(); errors.As(err, &c) {
				x.failed[s.Entry] = string(c)
			}
		}
	}
	return x.finish()
}

func (x *execution) step(s *step) error {
	dir, err := x.Base.Dir(parentOf(string(s.Path)))
	if errors.Is(err, beneath.ErrStale) {
		return x.noParent(s)
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	name := baseOf(string(s.Path))
	st, err := dir.Stat(name)
	if err != nil && err != unix.ENOENT {
		return err
	}
	there := err == nil
	switch s.Do {
	case take:
		return x.take(s, dir, name, &st, there)
	case remove:
		if !there || x.ours[st.Ino] && st.Ino != s.Old.Ino {
			return nil
		}
		if !s.Old.object(identOf(&st)) {
			return conflict(whyChanged)
		}
		if err = dir.Rmdir(name); err == unix.ENOTEMPTY {
			return conflict("has files of others")
		}
		return err
	case place:
		return x.place(s, dir, name, &st, there)
	case swap:
		return x.swap(s, dir, name, &st, there)
	}
	return x.attr(s, &st, there)
}

// forced does a step in a directory that its owner may not write to. The branch has made its own one writable before.
func (x *execution) forced(s *step) error {
	defer x.Base.Lift(parentOf(string(s.Path)), unix.S_IRWXU)()
	if s.Do != attr { // it sets the mode
		defer liftDir(x.Base, string(s.Path))()
		defer liftDir(x.State, stagePath(s.Stage))()
	}
	return x.step(s)
}

// noParent ends a step whose directory is gone.
func (x *execution) noParent(s *step) error {
	switch s.Do {
	case take, remove:
		return nil
	case place:
		if len(s.From) > 0 {
			if _, err := x.stage.Stat(s.Stage); err == nil {
				if err := x.putBack(s.Stage, string(s.From)); err != nil {
					return err
				}
			}
		}
	}
	return conflict(whyGone)
}

// matches reports whether an object is the version that the plan has found. The change time of a file with several names
// changes with its other names, that of a directory with its content.
func (i ident) matches(st *beneath.Stat) bool {
	now := identOf(st)
	return i == now || (st.IsDir() || st.Nlink > 1) && i.content(now)
}

// take moves an object to the stage. That it is the one meant is certain only there.
func (x *execution) take(s *step, dir beneath.Dir, name string, st *beneath.Stat, there bool) error {
	if _, err := x.stage.Stat(s.Stage); err == unix.ENOENT {
		if !there || x.ours[st.Ino] && st.Ino != s.Old.Ino {
			return nil // done before; place reports what is not
		}
		if !s.Old.matches(st) {
			return conflict(whyChanged)
		}
		if err := dir.Rename(name, x.stage, s.Stage, unix.RENAME_NOREPLACE); err == unix.ENOENT {
			return nil
		} else if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	now, err := x.stage.Stat(s.Stage)
	if err != nil {
		return err
	}
	if s.Old.content(identOf(&now)) {
		return nil
	}
	if err := x.putBack(s.Stage, string(s.Path)); err != nil {
		return err
	}
	return conflict(whyChanged)
}

// putBack moves an object of the host from the stage to its path, or beside it if the path has another object.
func (x *execution) putBack(staged, rel string) error {
	at := rel
	for n := 0; ; {
		dir, err := x.Base.Dir(parentOf(at))
		if errors.Is(err, beneath.ErrStale) { // its directory is gone: the nearest that is there
			at = beneath.Join(parentOf(parentOf(at)), baseOf(at))
			continue
		}
		if err == nil {
			err = x.stage.Rename(staged, dir, baseOf(at), unix.RENAME_NOREPLACE)
			dir.Close()
		}
		if err == nil {
			return nil
		}
		if err != unix.EEXIST {
			return fmt.Errorf("%w: %s: %w", errStuck, rel, err)
		}
		n++
		at = beneath.Join(parentOf(at), fmt.Sprintf("%s.newer%d", baseOf(rel), n))
	}
}

// place moves an object from the stage to a free path.
func (x *execution) place(s *step, dir beneath.Dir, name string, st *beneath.Stat, there bool) error {
	err := x.stage.Rename(s.Stage, dir, name, unix.RENAME_NOREPLACE)
	switch err {
	case unix.ENOENT:
		if there && st.Ino == s.New {
			return nil // done before
		}
		return conflict(whyGone)
	case nil:
		return nil
	}
	if len(s.From) > 0 { // it is Base's own
		if err := x.putBack(s.Stage, string(s.From)); err != nil {
			return err
		}
	}
	if err == unix.EEXIST {
		return conflict(whyToo)
	}
	return err
}

// swap exchanges an object of Base with a staged one. That it is the one meant is certain only in the stage.
func (x *execution) swap(s *step, dir beneath.Dir, name string, st *beneath.Stat, there bool) error {
	staged, err := x.stage.Stat(s.Stage)
	if err == unix.ENOENT {
		return nil // finish has removed the old version
	}
	if err != nil {
		return err
	}
	if staged.Ino == s.New {
		if !there {
			return conflict(whyGone)
		}
		if !s.Old.matches(st) {
			return conflict(whyChanged)
		}
		if err := dir.Rename(name, x.stage, s.Stage, beneath.RenameExchange); err == unix.ENOENT {
			return conflict(whyGone)
		} else if err != nil {
			return err
		}
		if staged, err = x.stage.Stat(s.Stage); err != nil {
			return err
		}
	}
	if s.Old.content(identOf(&staged)) {
		return nil
	}
	err = x.stage.Rename(s.Stage, dir, name, beneath.RenameExchange)
	switch err {
	case nil:
		staged, err = x.stage.Stat(s.Stage)
	case unix.ENOENT:
		err = nil // the host has removed the new version
	}
	if err == nil && staged.Ino != s.New { // the stage has a version of the host
		err = x.putBack(s.Stage, string(s.Path))
	}
	if err != nil {
		return err
	}
	return conflict(whyChanged)
}

// attr sets attributes.
func (x *execution) attr(s *step, st *beneath.Stat, there bool) error {
	if x.failed[s.Entry] != "" {
		return nil
	}
	if !there {
		return conflict(whyGone)
	}
	if s.Old.Birth == 0 && s.Old.Dir && st.Ino == s.Old.Ino && st.IsDir() {
		s.Old = identOf(st) // a directory that the commit has made
	}
	if !s.Old.content(identOf(st)) {
		return conflict(whyChanged)
	}
	err := s.Attr.setAt(x.Base, string(s.Path), st.ID())
	if errors.Is(err, beneath.ErrStale) {
		return conflict(whyChanged)
	}
	return err
}

// finish makes the steps durable and ends the intent.
func (x *execution) finish() error {
	if err := x.adoptAll(); err != nil {
		return err
	}
	var lines []line
	dirs := map[string]bool{}
	note := func(rel []byte, l line) {
		if st, err := x.Base.Stat(string(rel)); err == nil {
			l.ident, l.Path = identOf(&st), rel
			lines = append(lines, l)
		}
	}
	for _, rel := range x.in.Touched {
		dirs[string(rel)] = true
		note(rel, line{})
	}
	for _, p := range x.in.Whole {
		note(p.Path, line{Made: true, Upper: p.Upper})
	}
	for _, p := range x.in.Carried {
		if st, err := x.Base.Stat(string(p.Path)); err == nil && st.IsDir() {
			lines = append(lines, line{ident: ident{Ino: st.Ino, Birth: st.ID().Birth, Dir: true}, Path: p.Path, Moved: true, Upper: p.Upper})
		}
	}
	for _, ino := range x.in.Known {
		lines = append(lines, line{Known: ino})
	}
	for _, s := range x.in.Steps {
		dirs[parentOf(string(s.Path))] = true
		if x.failed[s.Entry] != "" {
			continue
		}
		switch l := (line{Upper: s.Upper, Seen: s.Seen}); s.Do {
		case take, remove:
			if _, err := x.Base.Stat(string(s.Path)); errors.Is(err, beneath.ErrStale) {
				lines = append(lines, line{Path: s.Path, Gone: true, ident: ident{Dir: s.Old.Dir}})
			}
		case attr:
			dirs[string(s.Path)] = true
			note(s.Path, l)
		default:
			if x.newer[s.Entry] {
				continue // it conflicts again
			}
			l.Moved, l.Made = len(s.From) > 0, s.Made
			note(s.Path, l)
		}
	}
	if err := x.noteOrigins(x.noted()); err != nil {
		return err
	}
	if err := x.syncAll(dirs); err != nil {
		return err
	}
	other, err := x.unlinkOld()
	if err != nil {
		return err
	}
	if err := x.taken.append(append(lines, other...)); err != nil {
		return err
	}
	if err := x.settle(x.paths()); err != nil {
		return err
	}
	return x.top.Unlink(intentName)
}

// paths returns those of the entries that were taken.
func (x *execution) paths() (taken []string) {
	for _, s := range x.in.Steps {
		if x.failed[s.Entry] == "" {
			taken = append(taken, string(s.Path))
		}
	}
	return taken
}

// unlinkOld removes from the stage what was taken out of Base. It returns lines for objects that have other names in Base:
// this has set their change times.
func (x *execution) unlinkOld() (lines []line, err error) {
	for _, s := range x.in.Steps {
		if s.Do != take && s.Do != swap || x.failed[s.Entry] != "" {
			continue
		}
		f, err := x.State.Object(stagePath(s.Stage))
		if errors.Is(err, beneath.ErrStale) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err = x.stage.Unlink(s.Stage); err == nil {
			var st beneath.Stat
			if st, err = f.Stat(); err == nil && s.Clean && st.Nlink > 0 {
				lines = append(lines, line{ident: identOf(&st)})
			}
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
	return lines, nil
}

// syncAll writes directories of Base to the disk. It skips those that are gone.
func (x *execution) syncAll(dirs map[string]bool) error {
	if len(dirs) > maxSyncs {
		return openDir(x.State, stageName, beneath.File.SyncFS)
	}
	for rel := range dirs {
		err := syncDir(x.Base, rel)
		if err != nil && (fatal(err) || !errors.Is(err, beneath.ErrStale)) {
			return openDir(x.State, stageName, beneath.File.SyncFS) // also for what cannot be opened
		}
	}
	return nil
}

// result adds what was done, and what others have prevented.
func (x *execution) result(r *Result) *Result {
	r.Moved = append(r.Moved, x.in.Carried...)
	seen := map[int]bool{}
	for _, s := range x.in.Steps {
		why := x.failed[s.Entry]
		if s.Do == place && len(s.From) > 0 && why == "" && x.taken.byID[s.New].Dir {
			r.Moved = append(r.Moved, Moved{s.Path, s.Upper})
		}
		if seen[s.Entry] {
			continue
		}
		seen[s.Entry] = true
		e := Entry{Path: string(s.Path), Kind: history.Changed, OldSize: -1, NewSize: -1}
		if x.entries != nil {
			e = x.entries[s.Entry]
		}
		if e.Merge != Merged || why != "" {
			e.Merge = ""
		}
		if e.Conflict = why; why != "" {
			r.Conflicts = append(r.Conflicts, e)
		} else {
			r.Taken = append(r.Taken, e)
		}
	}
	return r
}

// Redirect sets in Upper the paths in Base of directories that commits have moved. Unmount the overlay before, and mount it
// again: a mounted overlay has the old paths in memory. As soon as the kernel evicts the dentry, it shows of such a directory
// only what Upper has, and a rename writes the old path to Upper again. Redirect needs CAP_SYS_ADMIN.
func Redirect(upper *beneath.Root, moved []Moved) error {
	for _, m := range moved {
		rel := string(m.Path)
		st, err := upper.Stat(rel)
		if errors.Is(err, beneath.ErrStale) || err == nil && upperID(&st) != m.Upper {
			continue // the branch has moved it again
		}
		if err != nil {
			return err
		}
		f, err := upper.Open(rel, unix.O_RDONLY|unix.O_DIRECTORY, st.ID())
		if err != nil {
			return err
		}
		err = f.Setxattr("trusted.overlay.redirect", []byte("/"+rel), 0)
		f.Close()
		if err != nil {
			return fmt.Errorf("redirect %q: %w", rel, err)
		}
	}
	return nil
}

// Moved returns the directories that commits have moved, for Redirect before the overlay is mounted.
func (b *Branch) Moved() (list []Moved) {
	for _, l := range b.taken.byID {
		if l.Moved && l.Dir {
			list = append(list, Moved{l.Path, l.Upper})
		}
	}
	return list
}

// maxMoved bounds what MovedIn returns, in bytes.
const maxMoved = 64 << 20

// MovedIn is Moved of a branch that is not open. It only reads, and what it reads may be of another user.
func MovedIn(state *beneath.Root) (list []Moved, err error) {
	st, err := state.Stat(takenName)
	if errors.Is(err, beneath.ErrStale) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f, err := state.Open(takenName, unix.O_RDONLY, st.ID())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	byID, size := map[uint64]line{}, 0
	_, err = scanLines(f, func(l line) {
		switch old, was := byID[l.Ino]; {
		case l.Gone || l.Known != UpperID{} || size > maxMoved:
			return
		case was && old.object(l.ident):
			l.Moved, l.Upper = true, cmp.Or(l.Upper, old.Upper)
		case !l.Moved || !l.Dir:
			delete(byID, l.Ino)
			return
		}
		byID[l.Ino] = l
		size += len(l.Path) + 64 // and what the line takes
	})
	if size > maxMoved {
		return nil, fmt.Errorf("more than %d bytes of moved directories", maxMoved)
	}
	for _, l := range byID {
		if l.Dir {
			list = append(list, Moved{l.Path, l.Upper})
		}
	}
	return list, err
}
