package branch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Conflicts says what Commit does with entries that have a conflict.
type Conflicts uint8

// The ways to decide conflicts. An entry that cannot be taken at all stays with each of them.
const (
	Refuse Conflicts = iota // take nothing
	Theirs                  // take the branch's version
	Ours                    // leave the directory's version
	Merge                   // take the changes of both to a text, by lines, and leave the directory's version of other conflicts
)

// Options configures Commit. The zero value takes everything if nothing conflicts.
type Options struct {
	Paths     []string // patterns of scope.PathRule; none: everything
	Conflicts Conflicts
	Hash      string                 // of the Set with these Paths; "": any
	Only      []string               // of that Set, take what these cover and what it needs; none: everything
	May       func(rel string) error // the agent's rules let a path change; nil: any
	Progress  func(done, total int)  // called before each step, and after the last
	Check     bool                   // change nothing: Result is what a commit would do
}

// Result is what a commit has done.
type Result struct {
	Taken     []Entry `json:"taken"`
	Conflicts []Entry `json:"conflicts"` // what was not taken
}

// ErrChanged reports that the branch is not what Options.Hash names any more.
var ErrChanged = errors.New("the branch has changed since its hash was taken")

// Commit takes what differs over into Base. If ctx ends before everything is staged, nothing has happened. Afterwards Commit
// finishes, and a crash leaves a commit that Resume finishes.
func (b *Branch) Commit(ctx context.Context, opt Options) (*Result, error) {
	if _, err := b.top.Stat(IntentName); err != unix.ENOENT {
		return nil, errors.Join(errors.New("the last commit is not finished: call Resume"), err)
	}
	if err := b.refresh(!opt.Check); err != nil {
		return nil, err
	}
	d, err := b.differ(ctx)
	if err != nil {
		return nil, err
	}
	defer d.release()
	entries, err := selected(d.entries, opt.Paths, dependencies(d.entries))
	if err != nil {
		return nil, err
	}
	r := &Result{Taken: []Entry{}, Conflicts: []Entry{}}
	wanted := slices.Repeat([]bool{true}, len(entries))
	if len(opt.Only) > 0 {
		if wanted, err = covered(entries, opt.Only, dependencies(entries)); err != nil {
			return nil, err
		}
	}
	left, refused := make([]bool, len(entries)), make([]string, len(entries))
	for i := range entries {
		e := &entries[i]
		if opt.May != nil {
			if err := d.may(e, opt.May); err != nil {
				refused[i] = err.Error()
			}
		}
		merges := opt.Conflicts == Merge && e.Merge == MergeClean
		left[i] = !wanted[i] || refused[i] != "" || e.Conflict != "" && !merges && (e.fixed || opt.Conflicts != Theirs)
		if merges && !left[i] {
			e.Merge = Merged
		}
	}
	refuse := func() { // the hash is without it
		for i, why := range refused {
			entries[i].Conflict = cmp.Or(why, entries[i].Conflict)
		}
	}
	conflicts := func() []Entry { return only(entries, func(i int) bool { return left[i] && wanted[i] }) }
	if opt.Conflicts == Refuse && len(conflicts()) > 0 {
		refuse()
		r.Conflicts = conflicts()
		return r, nil
	}
	hashed := opt.Hash != ""
	if opt.Check {
		if hashed {
			s := &Set{Entries: entries}
			if err := b.hashMerged(ctx, s, nil); err != nil {
				return nil, err
			}
			if s.Hash != opt.Hash {
				return nil, ErrChanged
			}
		}
		refuse()
		leaveWith(entries, left)
		r.Conflicts, r.Taken = conflicts(), only(entries, func(i int) bool { return !left[i] })
		return r, nil
	}
	if err := b.clear(); err != nil {
		return nil, err
	}
	defer func() { _ = b.clear() }() // Resume clears it, too
	staged, err := b.stageAll(ctx, entries, left, hashed)
	if err != nil {
		return nil, err
	}
	for i := range entries {
		if e := &entries[i]; b.Link != nil && e.new.IsLink() && staged[i].Ino != 0 && refused[i] == "" {
			if err := b.Link(e.Path, e.Link); err != nil {
				refused[i], left[i] = err.Error(), true
			}
		}
	}
	if hashed {
		now, err := b.hash(ctx, entries, nil, func(i int, e *Entry) (*beneath.Root, string) {
			if staged[i].Ino != 0 && !e.new.IsDir() {
				return b.State, stagePath(stagedName(i))
			}
			return b.Merged, e.Path
		})
		if err != nil {
			return nil, err
		}
		if now != opt.Hash {
			return nil, ErrChanged
		}
	}
	for i := range entries {
		if e := &entries[i]; e.Merge == Merged { // the hash is of the branch's version
			e.NewSize = e.size
		}
	}
	refuse()
	if r.Conflicts = conflicts(); opt.Conflicts == Refuse && len(r.Conflicts) > 0 { // a client has changed it while it was staged
		return r, nil
	}
	leaveWith(entries, left)
	r.Conflicts = conflicts()
	in := d.intent(entries, left, staged)
	if len(in.steps) == 0 {
		return r, nil
	}
	d.release() // the steps set modes
	x, err := b.intend(ctx, in, entries)
	if err != nil {
		return nil, err
	}
	x.progress = opt.Progress
	if err := x.run(); err != nil {
		return nil, err
	}
	return x.result(r), nil
}

// may returns why the rules do not let an entry be taken. A moved directory takes all that is in it along.
func (d *differ) may(e *Entry, may func(string) error) error {
	err := may(e.Path)
	if err == nil && e.From != "" {
		err = d.mayBelow(e.From, e.Path, may)
	}
	return err
}

func (d *differ) mayBelow(from, to string, may func(string) error) error {
	if err := may(from); err != nil {
		return err
	}
	if err := may(to); err != nil {
		return err
	}
	for _, name := range d.within(from) {
		if at := beneath.Join(from, name); !d.claimed[at] {
			if err := d.mayBelow(at, beneath.Join(to, name), may); err != nil {
				return err
			}
		}
	}
	return nil
}

// leaveWith leaves the entries that need one that is left.
func leaveWith(entries []Entry, left []bool) {
	needs := dependencies(entries)
	for changed := true; changed; {
		changed = false
		for i := range entries {
			if left[i] {
				continue
			}
			for _, j := range needs[i] {
				if left[j] {
					left[i], changed = true, true
					entries[i].Conflict = cmp.Or(entries[i].Conflict, "needs "+entries[j].Path)
				}
			}
		}
	}
}

// intent is what a commit is going to do. With its steps it is on the disk before the first one: see package plan.
type intent struct {
	Touched [][]byte `json:"touched"` // directories of Base that change only by the steps
	steps   []step
}

// step is one change of Base.
type step struct {
	plan.Step
	mark
}

// mark is what a commit notes of a step.
type mark struct {
	Entry  int    `json:"entry"`
	Branch []byte `json:"branch"`           // the path of the entry in the branch
	Moved  bool   `json:"moved,omitempty"`  // an object of Base has moved there
	Clean  bool   `json:"clean,omitempty"`  // the object of Base has not changed since the fork
	Merged *ident `json:"merged,omitempty"` // the branch's version, which is merged: it goes, unless a client has changed it since
}

// takes reports whether a step takes an object of Base from its place, and brings none there.
func (s *step) takes() bool { return s.Do == plan.Remove || s.Do == plan.Move && s.To.Stage }

// stage returns a spot in the stage.
func stage(name string) plan.Spot { return plan.InStage(stagePath(name)) }

func stagedName(i int) string      { return strconv.Itoa(i) }
func parkedName(i int) string      { return "p" + strconv.Itoa(i) }
func removedName(i int) string     { return "r" + strconv.Itoa(i) }
func stagePath(name string) string { return stageName + "/" + name }

// intent returns the steps for the entries that are not left, and for which staged has inode numbers.
func (d *differ) intent(entries []Entry, left []bool, staged []ident) *intent {
	var out, in, last []step
	for i := range entries {
		e := &entries[i]
		if left[i] {
			continue
		}
		path, base, old, new := plan.InTree(e.Path), plan.InTree(e.base), plan.IdentOf(&e.old), staged[i]
		m := mark{Entry: i, Branch: []byte(e.at), Moved: e.Kind == history.Renamed}
		taken := mark{Entry: i, Branch: []byte(e.at), Clean: d.since(&e.old) == ""}
		attrs := func() {
			last = append(last, step{plan.Step{Do: plan.Attributes, At: path, Object: old, Attr: e.attr}, m})
		}
		switch {
		case e.Kind == history.Deleted && e.old.IsDir():
			out = append(out, step{plan.Step{Do: plan.Remove, At: base, Object: old}, taken})
		case e.Kind == history.Deleted:
			out = append(out, step{plan.Step{Do: plan.Remove, At: base, To: stage(removedName(i)), Object: old}, taken})
		case e.Kind == history.Renamed && new.Ino != 0:
			out = append(out, step{plan.Step{Do: plan.Remove, At: base, To: stage(removedName(i)), Object: old}, taken})
			in = append(in, step{plan.Step{Do: plan.Move, At: stage(stagedName(i)), To: path, Object: new}, m})
		case e.Kind == history.Renamed:
			out = append(out, step{plan.Step{Do: plan.Move, At: base, To: stage(parkedName(i)), Object: old}, taken})
			old.Ctime = unix.StatxTimestamp{}
			in = append(in, step{plan.Step{Do: plan.Move, At: stage(parkedName(i)), To: path, Home: base.Path, Object: old}, m})
			if e.Mode {
				attrs()
			}
		case e.Kind == history.Added:
			in = append(in, step{plan.Step{Do: plan.Move, At: stage(stagedName(i)), To: path, Object: new}, m})
			if e.new.IsDir() {
				old = new
				attrs()
			}
		case e.Kind == history.ModeChanged && new.Ino == 0:
			attrs()
		default:
			name := stagedName(i)
			m.Clean = taken.Clean
			if e.Merge == Merged {
				theirs := plan.IdentOf(&e.new)
				name, m.Merged = mergedName(i), &theirs
			}
			in = append(in, step{plan.Step{Do: plan.Exchange, At: path, To: stage(name), Object: old, Other: new}, m})
		}
	}
	byPath := func(a, b step) int { return cmp.Compare(a.Path(), b.Path()) }
	slices.SortFunc(out, func(a, b step) int { return byPath(b, a) })
	slices.SortFunc(in, byPath)
	slices.SortFunc(last, func(a, b step) int { return byPath(b, a) })
	all := &intent{steps: slices.Concat(out, in, last)}
	to, from := map[string]string{}, map[string]string{} // of moved directories
	for i, e := range entries {
		if e.Kind == history.Renamed && !left[i] {
			to[e.base], from[e.Path] = e.Path, e.base
		}
	}
	seen := map[string]bool{}
	touches := func(rel, base string) {
		if st, ok := d.stat(base); ok && !seen[rel] && d.since(&st) == "" {
			seen[rel] = true
			all.Touched = append(all.Touched, []byte(rel))
		}
	}
	for _, s := range out {
		dir := beneath.Parent(s.Path())
		touches(moved(dir, to), dir)
	}
	for _, s := range in {
		dir := beneath.Parent(s.Path())
		touches(dir, moved(dir, from))
	}
	return all
}

// moved returns the path that rel has elsewhere, if a directory above it is there.
func moved(rel string, dirs map[string]string) string {
	for dir := rel; dir != ""; dir = beneath.Parent(dir) {
		if to, ok := dirs[dir]; ok {
			return to + rel[len(dir):]
		}
	}
	return rel
}

// intend writes an intent. From then on the commit is finished, now or by Resume. A step needs the earlier ones of its entry, and of the
// entries that this one needs.
func (b *Branch) intend(ctx context.Context, in *intent, entries []Entry) (*execution, error) {
	note, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	p := plan.Plan{Note: note}
	needs := dependencies(entries)
	of := map[int][]int{} // steps of entries
	for i := range in.steps {
		s := &in.steps[i]
		if s.Note, err = json.Marshal(&s.mark); err != nil {
			return nil, err
		}
		s.Needs = slices.Clone(of[s.Entry])
		for _, e := range needs[s.Entry] {
			s.Needs = append(s.Needs, of[e]...)
		}
		of[s.Entry] = append(of[s.Entry], i)
		p.Steps = append(p.Steps, s.Step)
	}
	j, err := plan.Begin(ctx, b.top, IntentName, p)
	return &execution{Branch: b, in: in, j: j, entries: entries}, err
}

// Resume finishes a commit that was interrupted. It returns nil if there was none.
func (b *Branch) Resume() (*Result, error) {
	j, err := plan.Load(b.top, IntentName)
	if err != nil {
		return nil, fmt.Errorf("resume commit: %w", err)
	}
	if j == nil {
		return nil, nil // a view may use the stage
	}
	if err := b.refresh(true); err != nil {
		return nil, err
	}
	in := &intent{steps: make([]step, len(j.Steps))}
	err = json.Unmarshal(j.Note, in)
	for i, s := range j.Steps {
		in.steps[i].Step = s
		err = errors.Join(err, json.Unmarshal(s.Note, &in.steps[i].mark))
	}
	if err != nil {
		j.Close()
		return nil, fmt.Errorf("resume commit: %w", err)
	}
	x := &execution{Branch: b, in: in, j: j}
	if err := x.run(); err != nil {
		return nil, err
	}
	return x.result(&Result{Taken: []Entry{}, Conflicts: []Entry{}}), b.clear()
}

// clear empties the stage. There must be no intent.
func (b *Branch) clear() error {
	if _, err := b.top.Stat(IntentName); err != unix.ENOENT {
		return err
	}
	stage, err := b.State.Dir(stageName)
	if err != nil {
		return err
	}
	defer stage.Close()
	names, err := b.State.Names(stageName)
	for _, name := range names {
		err = errors.Join(err, stage.Remove(name))
	}
	return err
}
