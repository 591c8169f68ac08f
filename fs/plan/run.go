package plan

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// Keeper keeps what the steps of a plan change. A change that it refuses is not made.
type Keeper interface {
	// Remove removes the object at a place, which has the attributes st, and keeps it.
	Remove(s *Step, at Place, st *beneath.Stat) error
	// Move calls change, which moves the object with the attributes st, or exchanges it.
	Move(s *Step, from, to Place, st *beneath.Stat, change func() error) error
	// Keep keeps the content, the attributes or the times of the object at a place, which a step is about to set.
	Keep(s *Step, at Place, st *beneath.Stat) error
	// Fill writes the content of a Rewrite to a file that is open for reading and writing.
	Fill(s *Step, f beneath.File) error
	// Show does a step Show, unless it is done.
	Show(s *Step) error
	// Left notes what a step has made of an object. done says that the step is complete.
	Left(s *Step, now *beneath.Stat, done bool)
}

// Runner is what a plan runs with.
type Runner struct {
	Tree, Stage *beneath.Root // their file system is one
	Keeper      Keeper        // nil: nothing is kept

	Dirs func(rel string) error // makes a directory of the tree that a layer shows; nil: it is no layer

	Lock func() (unlock func(), err error) // excludes others during one step; nil: nobody
	// a name of the tree, or its object, may have changed; nil: nobody is told
	Changed  func(at Place, id beneath.FileID)
	Progress func(done, total int)    // called before steps, and at the end; may be nil
	Fatal    func(error) bool         // no other step would fare better
	Partly   func(s *Step, err error) // a step is done but for this
}

// ErrStuck reports that a version of another process is in the stage and could not be put back. Nothing may clear the
// stage.
var ErrStuck = errors.New("a file of the directory could not be put back")

// Run does the steps that are not done. What prevents one is in Failed. After an error, or if ctx has ended, Run can be
// called again. What it has done is on the disk with a Keeper only: else the caller syncs the directories. A step whose note a power failure
// has taken is recognized by where its object is.
func (j *Journal) Run(ctx context.Context, r Runner) error {
	x := &run{Runner: r, j: j, places: map[uint64][]int{}}
	for i, s := range j.Steps {
		if s.Do == Move || s.Do == Exchange {
			x.places[s.Object.Ino] = append(x.places[s.Object.Ino], i)
		}
		if s.Do == Exchange {
			x.places[s.Other.Ino] = append(x.places[s.Other.Ino], i)
		}
	}
	for i := 0; i < len(j.Steps); {
		if x.Progress != nil {
			x.Progress(i, len(j.Steps))
		}
		if j.ended[i] {
			i++
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		var fatal error
		for _, err := range x.try(i, x.together(i)) {
			if err != nil && !x.fatal(err) {
				err = x.home(&j.Steps[i], err)
			}
			why, ok := errors.AsType[*Failure](err)
			if err != nil && !ok {
				why = &Failure{Kind: System, Text: err.Error()}
			}
			if err != nil && x.fatal(err) {
				fatal = cmp.Or(fatal, fmt.Errorf("%s: %w", j.Steps[i].Path(), err))
			} else {
				_ = j.end(i, why) // without the note the step is recognized by where its object is
			}
			i++
		}
		if fatal != nil {
			return fatal
		}
	}
	if x.Progress != nil {
		x.Progress(len(j.Steps), len(j.Steps))
	}
	if x.Keeper == nil {
		return nil
	}
	return j.log.Sync(true)
}

// run is a run of the steps.
type run struct {
	Runner
	j       *Journal
	places  map[uint64][]int // steps that bring an object to a place
	written map[int]written  // by Rewrites, perhaps not on the disk yet
}

// written is a file as a step has left it.
type written struct {
	beneath.File
	now beneath.Stat
}

// The bounds of steps that are done together: clients wait meanwhile.
const (
	maxTogether      = 256
	maxTogetherBytes = 16 << 20
	maxSyncs         = 64 // threads that wait for the disk
)

// together returns the end of the steps from i on that are done together: one alone, or Rewrites that do not need each
// other, because a disk syncs many files in little more time than one.
func (x *run) together(i int) int {
	size := int64(0)
	for n, s := range x.j.Steps[i:] {
		if s.Do == Rewrite {
			size += s.Attr.Size
		}
		alone := s.Do != Rewrite || x.j.Steps[i].Do != Rewrite || slices.ContainsFunc(s.Needs, func(need int) bool { return need >= i })
		if n > 0 && (alone || x.j.ended[i+n] || n == maxTogether || size > maxTogetherBytes) {
			return i + n
		}
	}
	return len(x.j.Steps)
}

func (x *run) root(s Spot) *beneath.Root {
	if s.Stage {
		return x.Stage
	}
	return x.Tree
}

func (x *run) fatal(err error) bool {
	return errors.Is(err, ErrStuck) || x.Fatal != nil && x.Fatal(err)
}

// try does the steps from i to end, under one lock.
func (x *run) try(i, end int) (errs []error) {
	errs = make([]error, end-i)
	if x.Lock != nil {
		unlock, err := x.Lock()
		if err != nil {
			return []error{err}
		}
		defer unlock()
	}
	x.giveBack(&x.j.Steps[i])
	x.written = map[int]written{}
	for n := range errs {
		errs[n] = x.one(i + n)
	}
	x.sync(func(n int, err error) { errs[n-i] = err }) // before a record says that it is complete
	for n := range errs {
		if f, ok := x.written[i+n]; ok {
			x.Keeper.Left(&x.j.Steps[i+n], &f.now, errs[n] == nil)
			f.Close()
		}
	}
	return errs
}

// sync writes the files that were written to the disk, many at a time: a disk takes little longer for many than for one. Not syncfs(2):
// it writes what others have written as well, which may be gigabytes, and clients wait.
func (x *run) sync(done func(step int, err error)) {
	var all sync.WaitGroup
	turns := make(chan struct{}, maxSyncs)
	for n, f := range x.written {
		turns <- struct{}{}
		all.Go(func() {
			done(n, f.Sync(true))
			<-turns
		})
	}
	all.Wait()
}

// one does a step. Where a mode keeps the owner from it, he has the right for the step.
func (x *run) one(i int) error {
	s := &x.j.Steps[i]
	for _, n := range s.Needs {
		if x.j.Failed[n] != nil {
			return &Failure{Kind: Skipped, Step: n}
		}
	}
	err := x.step(i, s)
	if errors.Is(err, unix.EACCES) {
		restore := x.lift(s)
		err = x.step(i, s)
		restore()
	}
	return err
}

// lift lifts the modes that a step may need: those of the directories above its names, and of a directory that gets
// another parent.
func (x *run) lift(s *Step) (restore func()) {
	var all []func()
	for _, spot := range []Spot{s.At, s.To} {
		all = append(all, x.liftAt(spot, 0))
		if st, err := x.root(spot).Stat(spot.Rel()); err == nil && st.IsDir() && (s.Do == Move || s.Do == Exchange) {
			all = append(all, x.liftAt(spot, unix.S_IRWXU))
		}
	}
	return func() {
		for _, one := range slices.Backward(all) {
			one()
		}
	}
}

// liftAt lifts modes of a path, which the journal has before.
func (x *run) liftAt(at Spot, mode uint32) (restore func()) {
	if len(at.Path) == 0 {
		return func() {}
	}
	return x.root(at).LiftNoted(at.Rel(), mode, func(l beneath.Lifted) error {
		return x.j.append(entry{Lift: &lift{[]byte(l.Rel), at.Stage, l.ID, l.Was, l.Now}})
	})
}

// giveBack restores the modes that a process had lifted for a step when it was killed. The step may have moved one of
// the objects.
func (x *run) giveBack(s *Step) {
	depth := func(l lift) int { // the objects first, then the directories above them from the deepest up
		if len(l.Path) > 0 && (bytes.Equal(l.Path, s.At.Path) || bytes.Equal(l.Path, s.To.Path)) {
			return math.MaxInt
		}
		return len(l.Path)
	}
	slices.SortStableFunc(x.j.lifts, func(a, b lift) int { return cmp.Compare(depth(b), depth(a)) })
	for _, l := range x.j.lifts {
		for _, at := range []Spot{{l.Path, l.Stage}, s.At, s.To} {
			x.root(at).GiveBack(beneath.Lifted{Rel: at.Rel(), ID: l.ID, Was: l.Was, Now: l.Now})
		}
	}
	x.j.lifts = nil
}

// place opens the directory of a spot.
func (x *run) place(s Spot) (Place, error) {
	rel := s.Rel()
	d, err := x.root(s).Dir(beneath.Parent(rel))
	if errors.Is(err, beneath.ErrStale) && x.Dirs != nil && !s.Stage && x.Dirs(beneath.Parent(rel)) == nil {
		d, err = x.root(s).Dir(beneath.Parent(rel))
	}
	if errors.Is(err, beneath.ErrStale) {
		err = &Failure{Kind: Parent}
	}
	if err != nil {
		return Place{}, err
	}
	st, err := d.Self().Stat()
	if err != nil {
		d.Close()
		return Place{}, err
	}
	return Place{Dir: d, ID: st.ID(), Rel: beneath.Parent(rel), Name: beneath.Base(rel)}, nil
}

// changed reports a name of the tree.
func (x *run) changed(s Spot, at Place) {
	if x.Changed == nil || s.Stage {
		return
	}
	st, err := at.Stat()
	id := st.ID()
	if err != nil {
		id = beneath.FileID{}
	}
	x.Changed(at, id)
}

// look returns the attributes of what a place has.
func look(at Place) (st beneath.Stat, there bool, err error) {
	if st, err = at.Stat(); err == unix.ENOENT {
		return st, false, nil
	}
	return st, err == nil, err
}

// step does a step, or what is left of it.
func (x *run) step(i int, s *Step) error {
	if s.Do == Show {
		return x.Keeper.Show(s)
	}
	at, err := x.place(s.At)
	if failure, ok := errors.AsType[*Failure](err); ok {
		if s.Do == Remove || s.Do == Move && x.later(i, s.Object) {
			return nil
		}
		return failure
	}
	if err != nil {
		return err
	}
	defer at.Dir.Close()
	defer x.changed(s.At, at)
	st, there, err := look(at)
	if err != nil {
		return err
	}
	switch s.Do {
	case Move, Exchange:
		to, err := x.place(s.To)
		if err != nil {
			return err
		}
		defer to.Dir.Close()
		defer x.changed(s.To, to)
		if s.Do == Move {
			return x.move(i, s, at, to, &st, there)
		}
		return x.exchange(i, s, at, to, &st, there)
	case Remove:
		return x.remove(i, s, at, &st, there)
	}
	return x.set(i, s, at, &st, there)
}

// later reports whether an object is where this step or a later one brings it: a process that was killed has done them.
func (x *run) later(i int, o Ident) bool {
	if !x.j.loaded {
		return false
	}
	for _, n := range x.places[o.Ino] {
		s := &x.j.Steps[n]
		spot := s.To
		if s.Do == Exchange && s.Other.SameObject(o) {
			spot = s.At
		}
		if st, err := x.root(spot).Stat(spot.Rel()); n >= i && err == nil && o.SameObject(IdentOf(&st)) {
			return true
		}
	}
	return false
}

// home returns the error of a step. An object of the tree that an earlier step has moved to the stage goes back to its
// name.
func (x *run) home(s *Step, err error) error {
	if len(s.Home) == 0 {
		return err
	}
	if _, gone := x.Stage.Stat(s.At.Rel()); gone != nil {
		return err
	}
	return cmp.Or(x.putBack(s.At, string(s.Home)), err)
}

// putBack moves an object of others to its path, or beside it if the path has another object.
func (x *run) putBack(from Spot, rel string) error {
	stuck := func(err error) error { return fmt.Errorf("%w: %s: %w", ErrStuck, rel, err) }
	source, err := x.place(from)
	if err != nil {
		return stuck(err)
	}
	defer source.Dir.Close()
	at := rel
	for n := 0; ; {
		to, err := x.place(InTree(at))
		if failure, ok := errors.AsType[*Failure](err); ok && failure.Kind == Parent { // the nearest directory that is there
			at = beneath.Join(beneath.Parent(beneath.Parent(at)), beneath.Base(at))
			continue
		}
		if err == nil {
			err = source.Dir.Rename(source.Name, to.Dir, to.Name, unix.RENAME_NOREPLACE)
			x.changed(InTree(at), to)
			to.Dir.Close()
		}
		if err == nil {
			return nil
		}
		if err == unix.EACCES && n == 0 {
			defer x.liftAt(InTree(at), 0)()
			n++
			continue
		}
		if err != unix.EEXIST {
			return stuck(err)
		}
		n++
		at = beneath.Join(beneath.Parent(at), fmt.Sprintf("%s.newer%d", beneath.Base(rel), n))
	}
}

// move moves an object. That it is the version meant is certain only at its new name.
func (x *run) move(i int, s *Step, at, to Place, st *beneath.Stat, there bool) error {
	if now, is, err := look(to); err != nil {
		return err
	} else if is && s.Object.SameObject(IdentOf(&now)) && (!there || !s.Object.SameObject(IdentOf(st))) {
		return x.moved(s, to) // done before
	}
	switch {
	case there && s.Object.Matches(st):
	case x.later(i, s.Object):
		return nil
	case there:
		return &Failure{Kind: Changed}
	default:
		return &Failure{Kind: Gone}
	}
	change := func() error {
		switch err := at.Dir.Rename(at.Name, to.Dir, to.Name, unix.RENAME_NOREPLACE); err {
		case nil:
			return x.moved(s, to)
		case unix.ENOENT:
			return &Failure{Kind: Gone}
		case unix.EEXIST:
			return &Failure{Kind: Taken}
		default:
			return err
		}
	}
	if x.Keeper == nil {
		return change()
	}
	return x.Keeper.Move(s, at, to, st, change)
}

// moved puts an object back that is not the version meant.
func (x *run) moved(s *Step, to Place) error {
	now, err := to.Stat()
	if err != nil || s.Object.SameContent(IdentOf(&now)) {
		return err
	}
	if s.At.Stage {
		return nil // nobody else has it
	}
	if err := x.putBack(s.To, s.At.Rel()); err != nil {
		return err
	}
	return &Failure{Kind: Changed}
}

// remove removes an object. One that is not there is removed.
func (x *run) remove(i int, s *Step, at Place, st *beneath.Stat, there bool) error {
	if len(s.To.Path) > 0 { // from the stage the planner removes it
		to, err := x.place(s.To)
		if err != nil {
			return err
		}
		defer to.Dir.Close()
		err = x.move(i, s, at, to, st, there)
		if failure, ok := errors.AsType[*Failure](err); ok && (failure.Kind == Gone || failure.Kind == Changed && x.ours(i, st, there)) {
			return nil
		}
		return err
	}
	if !there || x.ours(i, st, there) {
		return nil
	}
	if !s.Object.Matches(st) {
		return &Failure{Kind: Changed}
	}
	var err error
	switch {
	case x.Keeper != nil:
		err = x.Keeper.Remove(s, at, st)
	case st.IsDir():
		err = at.Dir.Rmdir(at.Name)
	default:
		err = at.Dir.Unlink(at.Name)
	}
	if err == unix.ENOTEMPTY {
		return &Failure{Kind: Full}
	}
	return err
}

// ours reports whether a later step has brought an object to the place of this one.
func (x *run) ours(i int, st *beneath.Stat, there bool) bool {
	return there && !x.j.Steps[i].Object.SameObject(IdentOf(st)) && x.later(i+1, IdentOf(st))
}

// exchange exchanges two objects. That they are the versions meant is certain only afterwards.
func (x *run) exchange(i int, s *Step, at, to Place, st *beneath.Stat, there bool) error {
	other, is, err := look(to)
	if err != nil {
		return err
	}
	switch {
	case is && s.Other.SameObject(IdentOf(&other)):
		if !there {
			return &Failure{Kind: Gone}
		}
		if !s.Object.Matches(st) {
			return &Failure{Kind: Changed}
		}
	case is && there && s.Other.SameObject(IdentOf(st)): // done before
		return x.exchanged(s, at, to)
	case x.later(i, s.Other):
		return nil
	case is && s.To.Stage:
		return x.exchanged(s, at, to)
	default:
		return &Failure{Kind: Gone}
	}
	change := func() error {
		if err := at.Dir.Rename(at.Name, to.Dir, to.Name, beneath.RenameExchange); err == unix.ENOENT {
			return &Failure{Kind: Gone}
		} else if err != nil {
			return err
		}
		return x.exchanged(s, at, to)
	}
	if x.Keeper == nil {
		return change()
	}
	return x.Keeper.Move(s, at, to, st, change)
}

// exchanged exchanges two objects back if At did not have the version meant.
func (x *run) exchanged(s *Step, at, to Place) error {
	now, err := to.Stat()
	if err != nil || s.Object.SameContent(IdentOf(&now)) {
		return err
	}
	if err = to.Dir.Rename(to.Name, at.Dir, at.Name, beneath.RenameExchange); err != nil && err != unix.ENOENT {
		return err
	}
	now, is, err := look(to)
	if err == nil && is && s.To.Stage && !s.Other.SameObject(IdentOf(&now)) { // the stage has a version of others
		err = x.putBack(s.To, s.At.Rel())
	}
	if err != nil {
		return err
	}
	return &Failure{Kind: Changed}
}

// set sets the content or attributes of an object.
func (x *run) set(i int, s *Step, at Place, st *beneath.Stat, there bool) (err error) {
	if !there {
		return &Failure{Kind: Gone}
	}
	if !x.j.begun[i] && !s.Object.SameContent(IdentOf(st)) || !s.Object.SameObject(IdentOf(st)) {
		return &Failure{Kind: Changed}
	}
	if x.Keeper != nil {
		if err := x.Keeper.Keep(s, at, st); err != nil {
			return err
		}
		defer func() {
			_, later := x.written[i]
			if now, failed := at.Stat(); failed == nil && !later {
				x.Keeper.Left(s, &now, err == nil)
			}
		}()
		if s.Do != Times {
			x.j.begun[i] = true
			if err := x.j.append(entry{Begun: &i}); err != nil {
				return err
			}
		}
	}
	var now beneath.File
	switch s.Do {
	case Rewrite:
		if now, err = x.rewrite(s, at, st); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				now.Close()
			}
		}()
	case Times:
		f, err := x.Tree.Object(at.Path())
		if err != nil {
			return err
		}
		defer f.Close()
		if now, err := f.Stat(); err != nil || now.ID() != st.ID() {
			return &Failure{Kind: Changed}
		}
		return f.Utimes(s.Attr.Times())
	}
	err = SetAttributes(x.Tree, at.Path(), st.ID(), s.Attr)
	switch {
	case errors.Is(err, beneath.ErrStale):
		return &Failure{Kind: Changed}
	case errors.Is(err, ErrCapability), errors.Is(err, ErrOwner):
		if x.Partly != nil {
			x.Partly(s, err)
		}
		err = nil
	}
	if err != nil || s.Do != Rewrite {
		return err
	}
	left, err := now.Stat()
	if err == nil {
		x.written[i] = written{now, left}
	}
	return err
}

// rewrite writes the content of a file, and returns the file.
func (x *run) rewrite(s *Step, at Place, st *beneath.Stat) (beneath.File, error) {
	f, err := x.Tree.Open(at.Path(), unix.O_RDWR, st.ID())
	if errors.Is(err, unix.EACCES) {
		restore := x.liftAt(s.At, unix.S_IRUSR|unix.S_IWUSR)
		f, err = x.Tree.Open(at.Path(), unix.O_RDWR, st.ID())
		restore()
	}
	if err != nil {
		return f, err
	}
	if err := x.Keeper.Fill(s, f); err != nil {
		f.Close()
		return f, err
	}
	return f, nil
}
