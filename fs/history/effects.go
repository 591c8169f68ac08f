package history

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/scope/effect"
)

// Work is a call, or a session with all its calls, for [Store.Effects].
type Work struct {
	Call    string    `json:"call,omitempty"`
	Session string    `json:"session,omitempty"` // without a call: the sandbox
	Began   time.Time `json:"began"`             // it has no generation before
	After   uint64    `json:"after,omitempty"`   // only changes with a later number are meant
}

func (w *Work) means(l Label) bool {
	if w.Call != "" {
		return l.Call == w.Call
	}
	return l.Session == w.Session
}

// Effects returns what a call or a session has changed so far, and the number of the last change. It reads the generations of that
// work alone: of an object that another client has moved since, the size and the type are not known.
func (s *Store) Effects(w Work) (e *effect.Effects, until uint64, err error) {
	s.mu.Lock()
	lost := len(s.lost) > 0
	s.mu.Unlock()
	if lost {
		s.listLost()
	}
	loaded, open, err := s.worked(&w)
	if err != nil {
		return nil, 0, err
	}
	found := joined(loaded, func(_ *generationRecords, r *journal.Record) bool { return r.Seq > w.After })
	found.settle()
	until = w.After
	for _, r := range found.records {
		until = max(until, r.Seq)
	}
	list := track(found).changes(s, Selection{})
	s.closing(list)
	if w.After > 0 {
		list = s.stillOpen(list, joined(loaded, func(_ *generationRecords, r *journal.Record) bool { return r.Seq <= w.After }))
	}
	for i := range list {
		c := &list[i]
		c.others = c.others || (c.Kind == Added || c.Kind == Changed) && s.meddled(c, open)
	}
	return summary(list), until, nil
}

// releaseTime bounds the wait for the requests by which the kernel releases the files of a process that has ended: it sends them
// before it reports the end, and does not wait for them (FUSE_RELEASE).
const releaseTime = 20 * time.Millisecond

// closing notes which files clients have open for writing.
func (s *Store) closing(list []Change) {
	for began, pause := time.Now(), releaseTime/1000; ; pause *= 2 {
		some := false
		for i := range list {
			c := &list[i]
			c.open = c.Type == "file" && c.Kind != Deleted && s.written(plain(c.id))
			some = some || c.open
		}
		if !some || time.Since(began) > releaseTime {
			return
		}
		time.Sleep(pause)
	}
}

// stillOpen adds the files of earlier changes that a client has open for writing: the kernel may write them past the view.
func (s *Store) stillOpen(list []Change, before *selected) []Change {
	listed := map[string]bool{}
	for i := range list {
		listed[list[i].Path] = true
	}
	before.settle()
	for _, o := range track(before).all {
		if o.is && !o.directory && !listed[o.after] && s.written(plain(o.id)) {
			list = append(list, Change{id: o.id, open: true, Kind: Changed, Path: o.after, Type: "file", By: o.by, Why: o.why})
		}
	}
	slices.SortFunc(list, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return list
}

// worked returns the generations of a work with their records, and those of them that are open.
func (s *Store) worked(w *Work) (loaded []*generationRecords, open []*generation, err error) {
	began := uint64(w.Began.UnixNano())
	s.mu.Lock()
	all, known := s.ended.of(w), s.ended.since < began
	for label, g := range s.open {
		if w.means(label) {
			g.flush()
			open, all = append(open, g), append(all, g.began)
		}
	}
	s.mu.Unlock()
	if !known {
		list, err := s.generations()
		if err != nil {
			return nil, nil, err
		}
		for _, p := range list {
			if p.began >= began && !slices.Contains(all, p.began) {
				all = append(all, p.began)
			}
		}
	}
	slices.Sort(all)
	for _, began := range all {
		g, err := s.load(past{name: journal.OpenName(began), began: began})
		if err != nil {
			return nil, nil, err
		}
		if w.means(g.Label) && g.Undo == nil {
			loaded = append(loaded, &g)
		}
	}
	return loaded, open, nil
}

// endings are the last generations that have ended. Store.mu guards it.
type endings struct {
	all   []ending
	since uint64 // all has what has ended since
}

type ending struct {
	label       Label
	began, when uint64
}

// maxEndings bounds endings. For work that has begun before them, the history's directory is read.
const maxEndings = 4 * maxOpen

func (e *endings) add(label Label, began, now uint64) {
	if len(e.all) == maxEndings {
		e.since = e.all[0].when
		e.all = slices.Delete(e.all, 0, 1)
	}
	e.all = append(e.all, ending{label, began, now})
}

// of returns when the generations of a work began.
func (e *endings) of(w *Work) (all []uint64) {
	for _, one := range e.all {
		if w.means(one.label) {
			all = append(all, one.began)
		}
	}
	return all
}

// meddled reports whether somebody else has changed what a client of the generations has made or written: another client, or the
// host.
func (s *Store) meddled(c *Change, open []*generation) bool {
	st, err := s.tree.Stat(c.Path)
	if err != nil {
		return !errors.Is(err, unix.EACCES) // the agent has closed a directory
	}
	id := plain(st.ID())
	if id != (beneath.FileID{Ino: c.id.Ino, Birth: c.id.Birth}) {
		return c.id != (beneath.FileID{}) && c.id.Ino != 0
	}
	return st.IsRegular() && slices.ContainsFunc(open, func(g *generation) bool {
		return g.has(id, seenBorn|seenContent) && !g.own(&st, seenBorn|seenContent)
	})
}

// summary returns the effects of changes, which are sorted by path. A directory that is new or removed stands for what is in it,
// and .git for what git keeps there: only what has marks is listed beside it.
func summary(list []Change) *effect.Effects {
	e := &effect.Effects{Nothing: len(list) == 0, By: map[string]int{}}
	kinds := map[ChangeKind]*kindOf{}
	for k, into := range map[ChangeKind]*[]effect.Object{Deleted: &e.Removed, Renamed: &e.Moved, Changed: &e.Changed, ModeChanged: &e.Modes, Added: &e.Created} {
		kinds[k] = &kindOf{into: into, whole: map[string]*effect.Object{}, git: map[string]*effect.Object{}, beside: map[*effect.Object]int{}}
	}
	for i := range list {
		c := &list[i]
		for _, program := range c.By {
			e.By[program]++
		}
		kinds[c.Kind].add(c)
	}
	n := func(k ChangeKind) int { return kinds[k].count }
	e.Counts = effect.Counts{Removed: n(Deleted), Moved: n(Renamed), Changed: n(Changed), Modes: n(ModeChanged), Created: n(Added)}
	objects, bytes := 0, 0
	for _, k := range []ChangeKind{Deleted, Renamed, Changed, ModeChanged, Added} {
		for _, o := range kinds[k].objects {
			bytes += len(o.Path) + len(o.From)
			if objects++; objects > effect.Max || bytes > maxEffects {
				e.LeftOut += max(1, o.Files)
				continue
			}
			*kinds[k].into = append(*kinds[k].into, *o)
		}
	}
	return e
}

// maxEffects bounds the paths of effects, in bytes.
const maxEffects = 16 << 10

// kindOf are the changes of one kind.
type kindOf struct {
	into    *[]effect.Object
	count   int
	objects []*effect.Object
	whole   map[string]*effect.Object // directories that stand for what is in them
	git     map[string]*effect.Object // .git that are not new
	beside  map[*effect.Object]int    // how many of what is in a directory are listed
}

// maxBeside bounds kindOf.beside: after them the directory has the marks.
const maxBeside = 8

func (k *kindOf) add(c *Change) {
	k.count++
	o := &effect.Object{Path: c.Path, From: c.From, Marks: marksOf(c)}
	if (c.Kind == ModeChanged || c.Mode) && c.OldMode != c.NewMode {
		o.Mode = fmt.Sprintf("%04o > %04o", c.OldMode, c.NewMode)
	}
	directory := c.Type == "directory"
	if dir := k.above(c, o); dir != nil {
		if !directory {
			dir.Files++
		}
		o.Marks = slices.DeleteFunc(o.Marks, func(mark string) bool { return slices.Contains(dir.Marks, mark) })
		if len(o.Marks) == 0 {
			return
		}
		if k.beside[dir]++; k.beside[dir] > maxBeside {
			dir.Marks = append(dir.Marks, o.Marks...)
			return
		}
	}
	if directory {
		o.Path += "/"
		if c.Kind == Added || c.Kind == Deleted {
			k.whole[c.Path] = o
		}
	}
	k.objects = append(k.objects, o)
}

// above returns the directory that stands for a change; nil: none does.
func (k *kindOf) above(c *Change, o *effect.Object) *effect.Object {
	for dir := beneath.Parent(c.Path); dir != ""; dir = beneath.Parent(dir) {
		if whole := k.whole[dir]; whole != nil {
			return whole
		}
	}
	at, _, inside := strings.Cut("/"+c.Path, "/.git/")
	if !inside || len(o.Marks) > 0 {
		return nil
	}
	name := strings.TrimPrefix(at+"/.git", "/")
	dir := k.git[name]
	if dir == nil {
		dir = &effect.Object{Path: name + "/"}
		k.git[name] = dir
		k.objects = append(k.objects, dir)
	}
	return dir
}

// marksOf returns the marks of a change.
func marksOf(c *Change) (marks []string) {
	if c.Why != "" {
		marks = append(marks, effect.NotKept+c.Why)
	}
	if c.others {
		marks = append(marks, effect.Others)
	}
	if c.open {
		marks = append(marks, effect.Open)
	}
	if c.Kind == Deleted {
		return marks
	}
	if c.Type == "file" && c.NewMode&0o111 != 0 && (c.Kind == Added || c.OldMode&0o111 == 0) && !strings.HasSuffix(c.Path, ".sample") {
		marks = append(marks, effect.Executable)
	}
	if effect.Configures(c.Path) {
		marks = append(marks, effect.Read)
	}
	return marks
}
