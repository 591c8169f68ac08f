package history

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Change describes the change of one object.
type Change struct {
	Kind     ChangeKind `json:"kind"`
	Path     string     `json:"path"`               // its name afterwards; of one that was removed, before
	From     string     `json:"from,omitempty"`     // Renamed: its name before
	Type     string     `json:"type"`               // file, directory, link, other
	Mode     bool       `json:"mode,omitempty"`     // attributes changed as well, or only they did
	OldMode  uint32     `json:"old_mode,omitempty"` // permissions; 0: not known
	NewMode  uint32     `json:"new_mode,omitempty"`
	Sessions []string   `json:"sessions,omitempty"`
	Calls    []string   `json:"calls,omitempty"`
	By       []string   `json:"by,omitempty"` // programs
	Last     time.Time  `json:"last,omitzero"`
	Why      string     `json:"not_kept,omitempty"` // why it cannot be taken back
	Conflict string     `json:"conflict,omitempty"` // of a branch: why it cannot be taken over
	Merge    string     `json:"merge,omitempty"`    // likewise: see branch.Entry
	OldSize  int64      `json:"old_size"`           // before; -1: not known, or it was not there
	NewSize  int64      `json:"new_size"`           // afterwards; -1: not known, or it is not there
	Old      Version    `json:"old,omitzero"`       // the content before
	New      Version    `json:"new,omitzero"`       // the content afterwards: before the next change that is not meant

	id     beneath.FileID
	now    *beneath.Stat // of what is in the tree, for tracker.looks; nil: it is not there, or cannot be looked at
	closed bool          // the agent has closed its directory
	others bool          // somebody else has changed its content between two of these changes
	open   bool          // a client has it open for writing
	fifo   bool          // it is one
}

// ChangeKind is the kind of a change.
type ChangeKind string

// The kinds of change.
const (
	Added       ChangeKind = "added"
	Changed     ChangeKind = "changed"
	Deleted     ChangeKind = "removed"
	Renamed     ChangeKind = "moved" // and perhaps changed: Old is not zero
	ModeChanged ChangeKind = "mode"
)

// Version names a content: a kept one, or that of a file of the scope. The zero Version is none.
type Version struct {
	Generation string `json:"generation,omitempty"`
	Kept       uint32 `json:"kept,omitempty"`
	Record     uint64 `json:"record,omitempty"` // the content is in this record of the generation
	At         int64  `json:"at,omitempty"`     // where the record is in its journal
	Path       string `json:"path,omitempty"`   // in the scope
	Sum        string `json:"sum,omitempty"`    // SHA-256 of the content in hex, for its reader; "": not known
}

// object is the state of one object before and after the records of a selection.
type object struct {
	id            beneath.FileID
	before, after string // paths
	was, is       bool   // it existed before, and after
	directory     bool
	content       *entry        // the first record that keeps its content
	kept          *entry        // the record that keeps it, if it is not there any more
	attr          *journal.Attr // before the first change of its attributes; nil: they did not change
	replaced      bool
	keeper        *generationRecords // it has made the object, or keeps its content
	closed        *journal.Attr      // how these changes have left the file; nil: not known
	others        bool               // see Change
	calls, by     []string
	sessions      []string
	last          *entry
	why           string
	size          int64

	now  string // its path after changes that are not meant
	next *entry // the first of those that changed or removed its content
	left bool   // one of those has removed it
}

// Changes returns what a selection of changes has done, sorted by path.
func (s *Store) Changes(sel Selection) ([]Change, error) {
	found, err := s.find(sel)
	if err != nil {
		return nil, err
	}
	return track(found).changes(s, sel), nil
}

// track follows the objects of what is picked.
func track(found *selected) *tracker {
	t := &tracker{byID: map[beneath.FileID]*object{}, dirs: map[string]bool{}}
	for i := range found.records {
		if e := &found.records[i]; e.picked && (!e.gone || e.Kind == journal.Moved) {
			t.add(e)
		}
	}
	for _, o := range t.all {
		o.now = o.after
	}
	for i := range found.records {
		if e := &found.records[i]; !e.picked && !e.lasting() && (!e.gone || e.Kind == journal.Moved) {
			t.follow(e)
		}
	}
	return t
}

// tracker follows objects through the records, the oldest first.
type tracker struct {
	byID map[beneath.FileID]*object
	all  []*object
	dirs map[string]bool // those that had one of the objects

	looks bool // Change.now is wanted
}

// at returns the object of a record, which it meets at a path.
func (t *tracker) at(e *entry, id beneath.FileID, rel string) *object {
	o := t.byID[id]
	if o == nil {
		o = &object{id: id, before: rel, after: rel, was: true, is: true, size: -1}
		t.byID[id] = o
		t.all = append(t.all, o)
		t.placed(rel)
	}
	o.calls = named(o.calls, e.gen.Call)
	o.by = named(o.by, e.Program)
	o.sessions = named(o.sessions, cmp.Or(e.gen.Parent, e.gen.Session))
	o.last = e
	o.why = cmp.Or(o.why, e.Why)
	return o
}

// maxNamed bounds the calls, sessions and programs that a Change names.
const maxNamed = 100

func named(list []string, name string) []string {
	if name == "" || len(list) == maxNamed || slices.Contains(list, name) {
		return list
	}
	return append(list, name)
}

func (t *tracker) add(e *entry) {
	switch e.Kind {
	case journal.Made, journal.Restored:
		delete(t.byID, e.Object) // its identity may be that of a removed one
		o := t.at(e, e.Object, e.Path)
		o.was, o.keeper, o.closed = false, e.gen, e.Attr
	case journal.Written:
		if o := t.byID[e.Object]; o != nil {
			o.closed = e.Attr
		}
	case journal.Linked:
		// A second name has a life of its own in the list.
		o := t.at(e, beneath.FileID{Ino: e.Object.Ino, Birth: e.Object.Birth, Dev: e.Seq}, e.Path)
		o.was = false
	case journal.Removed, journal.Returned:
		o := t.named(e, e.Object, e.Path)
		o.is, o.directory = false, e.Flags&journal.Directory != 0
		t.keeps(o, e)
	case journal.Moved:
		if e.gone {
			if e.Flags&journal.Born != 0 {
				t.named(e, e.Other, e.To).is = false
			}
			return
		}
		o := t.named(e, e.Object, e.Path)
		if e.Other != (beneath.FileID{}) {
			other := t.named(e, e.Other, e.To)
			other.is, other.directory, other.replaced = false, e.Flags&journal.Directory != 0, true
			t.keeps(other, e)
		}
		t.moved(o, e.Path, e.To)
	case journal.Exchanged:
		o, other := t.named(e, e.Object, e.Path), t.named(e, e.Other, e.To)
		t.moved(o, e.Path, "\x00")
		t.moved(other, e.To, e.Path)
		t.moved(o, "\x00", e.To)
	case journal.Lost:
		t.at(e, beneath.FileID{Dev: e.Seq}, e.Path)
	case journal.Content:
		o := t.at(e, e.Object, e.Path)
		o.others = o.others || o.keeper == e.gen || // kept again: it was not as the generation had left it
			e.Flags&journal.Busy == 0 && o.closed != nil && !o.closed.Same(e.Attr)
		if o.keeper, o.closed = e.gen, nil; o.content == nil {
			o.content, o.size = e, e.Attr.Size
		}
	case journal.Attributes:
		if e.Flags&journal.Names == 0 {
			o := t.at(e, e.Object, e.Path)
			if o.directory = e.Flags&journal.Directory != 0; o.attr == nil {
				o.attr = e.Attr
			}
		}
	}
}

// named is at for a record about one name of an object, which may have several.
func (t *tracker) named(e *entry, id beneath.FileID, rel string) *object {
	if o := t.byID[id]; o == nil || o.after == rel {
		return t.at(e, id, rel)
	}
	for _, o := range t.all {
		if o.is && o.after == rel && o.id.Ino == id.Ino && o.id.Birth == id.Birth {
			return t.at(e, o.id, rel)
		}
	}
	return t.at(e, beneath.FileID{Ino: id.Ino, Birth: id.Birth, Dev: e.Seq}, rel)
}

func (t *tracker) keeps(o *object, e *entry) {
	if e.Kept != 0 || e.Kind == journal.Returned {
		o.kept = e
	}
	if e.Attr != nil && o.size < 0 {
		o.size = e.Attr.Size
	}
}

// moved gives an object, and what is below it, another path.
func (t *tracker) moved(o *object, from, to string) {
	o.after = to
	t.placed(to)
	if !t.dirs[from] {
		return
	}
	for _, below := range t.all {
		if rest, ok := strings.CutPrefix(below.after, from+"/"); ok && below.is {
			below.after = to + "/" + rest
			t.placed(below.after)
		}
	}
}

// placed notes the directories of an object.
func (t *tracker) placed(rel string) {
	for dir := beneath.Parent(rel); dir != "" && !t.dirs[dir]; dir = beneath.Parent(dir) {
		t.dirs[dir] = true
	}
}

// follow notes what a change that is not meant has done to an object after those that are.
func (t *tracker) follow(e *entry) {
	meets := func(id beneath.FileID, rel string, removes bool) {
		if o := t.byID[id]; o != nil && o.is && !o.left && o.now == rel && o.last.Seq < e.Seq {
			o.left, o.next = removes, cmp.Or(o.next, e)
		}
	}
	moves := func(from, to string) {
		for _, o := range t.all {
			if rest, ok := strings.CutPrefix(o.now+"/", from+"/"); ok && o.is && o.last.Seq < e.Seq {
				o.now = strings.TrimSuffix(to+"/"+rest, "/")
			}
		}
	}
	switch e.Kind {
	case journal.Content:
		meets(e.Object, e.Path, false)
	case journal.Removed, journal.Returned:
		meets(e.Object, e.Path, true)
	case journal.Moved:
		meets(e.Other, e.To, true)
		moves(e.Path, e.To)
	case journal.Exchanged:
		moves(e.Path, "\x00")
		moves(e.To, e.Path)
		moves("\x00", e.To)
	}
}

// changes returns the list.
func (t *tracker) changes(s *Store, sel Selection) []Change {
	list, at := []Change{}, map[string]int{}
	for _, o := range t.all {
		c := Change{id: o.id, others: o.others, Path: o.after, Type: "file", Mode: o.attr != nil, Sessions: o.sessions, Calls: o.calls, By: o.by,
			Last: o.last.Time(), Why: o.why, OldSize: -1, NewSize: -1}
		if o.directory {
			c.Type = "directory"
		}
		if !o.was && !o.is && s.changedByOthers(o) { // the version of the others was there
			o.was, o.before, c.others = true, o.after, true
		}
		switch {
		case !o.was && !o.is:
			continue
		case !o.was:
			c.Kind, c.Mode = Added, false
		case !o.is:
			c.Kind, c.Path, c.Mode = Deleted, o.before, false
		case o.before != o.after:
			c.Kind, c.From = Renamed, o.before
		case o.content == nil && o.attr != nil:
			c.Kind = ModeChanged
		default: // Lost, too
			c.Kind = Changed
		}
		if !sel.below(c.Path) && !sel.below(c.From) {
			continue
		}
		st, err := s.describe(&c, o)
		if t.looks && st != (beneath.Stat{}) {
			c.now = &st
		}
		c.closed = err == unix.EACCES
		if i, ok := at[c.Path]; ok && (list[i].Kind == Added && c.Kind == Deleted || list[i].Kind == Deleted && c.Kind == Added) {
			list[i] = replaced(list[i], c)
			continue
		}
		at[c.Path] = len(list)
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return list
}

// changedByOthers reports whether others have changed a file that the changes have made and removed.
func (s *Store) changedByOthers(o *object) bool {
	if o.others || o.kept == nil || o.closed == nil {
		return o.others
	}
	st, err := s.statKept(o.kept)
	return err == nil && !journal.AttrOf(&st).Same(o.closed)
}

// describe adds what is known of an object before and after the changes. It returns what is in the tree.
func (s *Store) describe(c *Change, o *object) (now beneath.Stat, err error) {
	if o.was {
		c.OldSize, c.Old = o.size, versionBefore(o)
	}
	from := o.next // nil: it is in the tree
	switch {
	case !o.is && o.kept == nil:
		return now, nil
	case !o.is:
		from = o.kept
	case from != nil:
		c.New = versionOf(from)
	default:
		c.New = Version{Path: o.now}
	}
	if from != nil && from.Kind == journal.Content {
		c.NewSize = from.Attr.Size
		return now, nil
	}
	var st beneath.Stat
	if from != nil {
		st, err = s.statKept(from)
	} else {
		now, err = s.tree.Stat(o.now)
		st = now
	}
	if err != nil {
		return beneath.Stat{}, err
	}
	switch {
	case st.IsDir():
		c.Type = "directory"
	case st.IsLink():
		c.Type = "link"
	case !st.IsRegular():
		c.Type, c.fifo = "other", st.Type() == unix.S_IFIFO
	}
	size, mode := int64(st.Size), uint32(st.Mode)&0o7777
	if o.is {
		c.NewSize, c.NewMode = size, mode
	}
	if !o.was {
		return now, nil
	}
	c.OldMode = mode
	if o.attr != nil {
		c.OldMode = o.attr.Mode & 0o7777
	}
	if o.content == nil {
		c.OldSize = size
	}
	return now, nil
}

// statKept returns the attributes of the file that a record keeps.
func (s *Store) statKept(e *entry) (beneath.Stat, error) {
	if versionOf(e) == (Version{}) {
		return beneath.Stat{}, unix.ENOENT
	}
	st, err := s.dir.Stat(e.keptAt())
	if err == nil {
		return st, nil
	}
	g, err := s.named(idOf(e.gen.began)) // it has ended meanwhile
	if err != nil {
		return st, err
	}
	return s.dir.Stat(g.name + "/" + keptName(e.Kept))
}

// versionBefore returns the content that an object had before.
func versionBefore(o *object) Version {
	switch {
	case o.content != nil:
		return versionOf(o.content)
	case o.kept != nil:
		return versionOf(o.kept)
	case o.is && o.next != nil: // moved, or another mode
		return versionOf(o.next)
	case o.is:
		return Version{Path: o.now}
	}
	return Version{}
}

// versionOf returns the content that a record keeps; the zero Version if it keeps none.
func versionOf(e *entry) Version {
	switch {
	case e.Flags&journal.Blocks != 0: // a part of it
		return Version{}
	case e.Kind == journal.Returned:
		v, err := keptVersion(e.To)
		if err != nil {
			return Version{}
		}
		return v
	case e.Kept != 0:
		return Version{Generation: idOf(e.gen.began), Kept: e.Kept}
	case e.Flags&journal.Inline != 0:
		return Version{Generation: idOf(e.gen.began), Record: e.Seq, At: e.At}
	}
	return Version{}
}

// replaced joins the removal of an object and the creation of another one under its name.
func replaced(a, b Change) Change {
	if a.Kind == Added {
		a, b = b, a
	}
	a.Kind, a.New, a.NewSize, a.NewMode, a.id = Changed, b.New, b.NewSize, b.NewMode, b.id
	a.now, a.closed, a.fifo = b.now, b.closed, b.fifo
	a.Mode = a.OldMode != b.NewMode && a.OldMode != 0 && b.NewMode != 0
	for list, more := range map[*[]string][]string{&a.Calls: b.Calls, &a.Sessions: b.Sessions, &a.By: b.By} {
		for _, name := range more {
			*list = named(*list, name)
		}
		slices.Sort(*list)
	}
	if b.Last.After(a.Last) {
		a.Last = b.Last
	}
	return a
}
