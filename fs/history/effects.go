package history

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

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
	s.listLost()
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
	t := track(found)
	t.looks = true
	list := t.changes(s, Selection{})
	s.closing(list)
	if w.After > 0 {
		list = s.stillOpen(list, joined(loaded, func(_ *generationRecords, r *journal.Record) bool { return r.Seq <= w.After }))
	}
	for i := range list {
		c := &list[i]
		c.others = c.others || (c.Kind == Added || c.Kind == Changed) && meddled(c, open)
	}
	return summary(list, s.opt.Within), until, nil
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
	before.settle()
	for _, o := range track(before).all {
		listed := func(c Change) bool { return c.Path == o.after }
		if o.is && !o.directory && s.written(plain(o.id)) && !slices.ContainsFunc(list, listed) {
			c := Change{id: o.id, open: true, Kind: Changed, Path: o.after, Type: "file", By: o.by, Why: o.why}
			if st, err := s.tree.Stat(o.after); err == nil {
				c.now = &st
			}
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return list
}

// worked returns the generations of a work with their records, and those of them that are open.
func (s *Store) worked(w *Work) (loaded []*generationRecords, open []*generation, err error) {
	began := uint64(w.Began.UnixNano())
	s.mu.Lock()
	ended, known := s.ended.of(w), s.ended.since < began
	for label, g := range s.open {
		if w.means(label) {
			open = append(open, g)
		}
	}
	s.mu.Unlock()
	if !known {
		all, err := s.generations()
		if err != nil {
			return nil, nil, err
		}
		ended = nil
		for _, p := range all {
			if p.began >= began && !slices.ContainsFunc(open, func(g *generation) bool { return g.began == p.began }) {
				ended = append(ended, p.began)
			}
		}
	}
	add := func(g generationRecords, failed error) {
		if err = errors.Join(err, failed); failed == nil && w.means(g.Label) && g.Undo == nil {
			loaded = append(loaded, &g)
		}
	}
	for _, g := range open {
		add(g.load())
	}
	for _, began := range ended {
		add(s.load(past{name: journal.OpenName(began), began: began}))
	}
	return loaded, open, err
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
func meddled(c *Change, open []*generation) bool {
	if c.now == nil {
		return !c.closed
	}
	id := plain(c.now.ID())
	if id != plain(c.id) {
		return c.id.Ino != 0
	}
	return c.now.IsRegular() && slices.ContainsFunc(open, func(g *generation) bool {
		return g.has(id, seenBorn|seenContent) && !g.own(c.now, seenBorn|seenContent)
	})
}

// maxEffects bounds the paths of effects, in bytes.
const maxEffects = 16 << 10

// summary returns the effects of changes, which are sorted by path. A directory that is new or removed stands for what is in it,
// and .git for what git keeps there: only what has marks is listed beside it. The times of git's objects are none of them.
// within is Options.Within.
func summary(list []Change, within string) *effect.Effects {
	list = slices.DeleteFunc(slices.Clone(list), func(c Change) bool {
		_, git := InGit(within + c.Path)
		return git && c.Kind == ModeChanged && c.OldMode == c.NewMode && c.Why == ""
	})
	e := &effect.Effects{Nothing: len(list) == 0, By: map[string]int{}}
	lists, objects, bytes := e.Lists(), 0, 0
	for i, kind := range [...]ChangeKind{Deleted, Renamed, Changed, ModeChanged, Added} { // those of Lists
		k := kindOf{dirs: map[string]*stand{}, within: within}
		for c := range list {
			if c := &list[c]; c.Kind == kind {
				*lists[i].Count++
				k.add(c)
				for _, program := range c.By {
					if e.By[program] > 0 || len(e.By) < effect.Max { // a program gives itself any name
						e.By[program]++
					}
				}
			}
		}
		for _, o := range k.all {
			bytes += len(o.Path) + len(o.From)
			if objects++; objects > effect.Max || bytes > maxEffects {
				e.LeftOut += max(1, o.Files)
				continue
			}
			*lists[i].Objects = append(*lists[i].Objects, *o)
		}
	}
	return e
}

// kindOf are the changes of one kind.
type kindOf struct {
	all    []*effect.Object
	dirs   map[string]*stand // by their paths within
	within string            // Options.Within
}

// stand is a directory that stands for what is in it.
type stand struct {
	*effect.Object
	git    bool // it is not new, and stands for what has no marks
	beside int  // how many of what is in it are listed
}

// maxBeside bounds stand.beside: after them the directory has the marks.
const maxBeside = 8

func (k *kindOf) add(c *Change) {
	o := &effect.Object{Path: c.Path, From: c.From, Marks: marksOf(c, k.within)}
	if (c.Kind == ModeChanged || c.Mode) && c.OldMode != c.NewMode {
		o.Mode = fmt.Sprintf("%04o > %04o", c.OldMode, c.NewMode)
	}
	directory := c.Type == "directory"
	if dir := k.above(c.Path, len(o.Marks) > 0); dir != nil {
		if !directory {
			dir.Files++
		}
		o.Marks = slices.DeleteFunc(o.Marks, func(mark string) bool { return slices.Contains(dir.Marks, mark) })
		if len(o.Marks) == 0 {
			return
		}
		if dir.beside++; dir.beside > maxBeside {
			dir.Marks = append(dir.Marks, o.Marks...)
			return
		}
	}
	if directory {
		o.Path += "/"
		if c.Kind == Added || c.Kind == Deleted {
			k.dirs[k.within+c.Path] = &stand{Object: o}
		}
	}
	k.all = append(k.all, o)
}

// above returns the directory that stands for a path; nil: none does.
func (k *kindOf) above(rel string, marked bool) *stand {
	git := ""
	for dir := beneath.Parent(k.within + rel); dir != ""; dir = beneath.Parent(dir) {
		if whole := k.dirs[dir]; whole != nil && (!whole.git || !marked) {
			return whole
		}
		if path.Base(dir) == ".git" {
			git = dir
		}
	}
	if git == "" || marked {
		return nil
	}
	made := &stand{Object: &effect.Object{Path: strings.TrimPrefix(git+"/*", k.within)}, git: true}
	k.dirs[git], k.all = made, append(k.all, made.Object)
	return made
}

// marksOf returns the marks of a change. within is Options.Within.
func marksOf(c *Change, within string) (marks []string) {
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
	if c.fifo {
		marks = append(marks, effect.FIFO)
	}
	if effect.Configures(within + c.Path) {
		marks = append(marks, effect.Read)
	}
	return marks
}
