package history

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Selection says which changes are meant. Without Calls, Session, Since, Checkpoint and Generations these are those of
// the last session.
type Selection struct {
	Calls       []string  `json:"calls,omitempty"`
	Session     string    `json:"session,omitempty"` // of a sandbox, or of a client
	Since       time.Time `json:"since,omitzero"`
	Checkpoint  string    `json:"checkpoint,omitempty"` // everything after the last checkpoint of this name or id
	Generations []string  `json:"generations,omitempty"`
	Paths       []string  `json:"paths,omitempty"`   // only objects at or below one of these
	Undo        bool      `json:"undo,omitempty"`    // the last undo of the operator, or that of Generations, unless it was taken back
	Client      string    `json:"client,omitempty"`  // only changes of this client's session, and checkpoints that it has made
	Force       bool      `json:"force,omitempty"`   // of an undo: what others have changed since is kept beside what comes back
	Command     string    `json:"command,omitempty"` // of an undo: a name that the undos of several directories by one command have

	without []string // repositories of git whose state stays: see InGit
}

// selected are the records of a history from the first that a Selection means.
type selected struct {
	records []entry                           // in order
	alias   map[beneath.FileID]beneath.FileID // the directory that an undo has made for one that was removed
	force   bool
	any     bool                    // see world.any
	torn    map[beneath.FileID]bool // an undo of the object's content or attributes was interrupted
}

// pickMoved picks what happened to an object before a picked record has moved it, and after that if the end was its removal: a program
// writes a file under another name and renames it, or renames the old one and removes it.
func (f *selected) pickMoved(meant func(*entry) bool) {
	moved, gone := map[beneath.FileID]uint64{}, map[beneath.FileID]uint64{} // the records
	for i := range f.records {
		e, id := &f.records[i], plain(f.records[i].Object)
		switch {
		case e.picked && e.Kind == journal.Moved:
			moved[id] = e.Seq
		case moved[id] == 0 || e.Flags&(journal.Directory|journal.Twin) != 0 || !meant(e):
		case e.Kind == journal.Removed || e.Kind == journal.Returned:
			gone[id] = e.Seq
		}
	}
	for i := range f.records {
		e, id := &f.records[i], plain(f.records[i].Object)
		switch e.Kind {
		case journal.Made, journal.Moved, journal.Content, journal.Attributes:
			e.picked = e.picked || e.Flags&journal.Names == 0 && e.Seq < max(moved[id], gone[id]) && meant(e)
		case journal.Removed, journal.Returned:
			e.picked = e.picked || e.Seq == gone[id]
		}
	}
}

// older removes the records of how a file was left that are of an older object: one that was closed after the record of a new
// object, and before that object was there and had its identity.
func (f *selected) older() {
	there := map[beneath.FileID]uint64{}
	f.records = slices.DeleteFunc(f.records, func(e entry) bool {
		if e.Kind == journal.Made {
			there[plain(e.Object)] = e.gen.settled[e.Seq]
		}
		return e.Kind == journal.Written && e.Seq < there[plain(e.Object)]
	})
}

// cancel removes the records that an undo has inverted, and those that inverted them. A record of an undo stays if it is
// picked and what it has inverted is not: that undo is to be taken back.
func (f *selected) cancel() {
	type inverse struct{ gen, of uint64 }
	all, complete, dead, inverted := map[uint64]*entry{}, map[inverse]bool{}, map[uint64]bool{}, map[inverse]bool{}
	moved := map[uint64]bool{} // the first of the two inverses of a move that has replaced something
	for i := range f.records {
		e := &f.records[i]
		all[e.Seq] = e
		if e.Kind == journal.Written {
			complete[inverse{e.gen.began, e.Of}] = true
		}
	}
	for _, e := range slices.Backward(f.records) {
		of := all[e.Of]
		if of == nil || dead[e.Seq] || e.picked && !of.picked || e.lasting() {
			continue
		}
		at := inverse{e.gen.began, e.Of}
		dead[e.Seq], inverted[at] = true, true
		switch {
		case of.replaced():
			moved[e.Of] = moved[e.Of] || e.Kind == journal.Moved
			dead[e.Of] = dead[e.Of] || e.Kind != journal.Moved
		case e.Kind != journal.Content && e.Kind != journal.Attributes || complete[at]:
			dead[e.Of] = true
		case !dead[e.Of]:
			f.torn[plain(e.Object)] = true
		}
	}
	for i := range f.records {
		e := &f.records[i]
		for of := all[e.Of]; e.Kind == journal.Written && of != nil && !e.ours; of = all[of.Of] {
			e.ours = of.picked
		}
		if e.gone = dead[e.Seq] || inverted[inverse{e.gen.began, e.Of}]; e.gone && e.Kind == journal.Written {
			e.undid = all[e.Of].Record
		}
		e.half = moved[e.Seq] && !dead[e.Seq]
	}
	f.records = slices.DeleteFunc(f.records, func(e entry) bool {
		return e.gone && !e.lasting() && !e.timesBefore() && e.Kind != journal.Moved && e.Kind != journal.Exchanged
	})
}

// lasting reports whether a record describes a state, whatever was inverted: that of a file afterwards, or of a directory
// before.
func (e *entry) lasting() bool { return e.Kind == journal.Written || e.Flags&journal.Names != 0 }

// replaced reports whether a record has two inverses: the object moves back, and what it has replaced comes back.
func (e *entry) replaced() bool {
	return e.Kind == journal.Moved && (e.Kept != 0 || e.Flags&journal.Directory != 0)
}

// timesBefore reports whether a record has the times of a directory before a change.
func (e *entry) timesBefore() bool {
	return e.Kind == journal.Attributes && e.Flags&journal.Directory != 0
}

// entry is a record with its generation.
type entry struct {
	*journal.Record
	gen    *generationRecords
	picked bool            // the Selection means it
	gone   bool            // an undo has inverted it, or it is of that undo
	ours   bool            // Written: an undo, or one of an undo, has written the file to invert a record that the Selection means
	undid  *journal.Record // Written of an undo: the file is as it was before this record
	half   bool            // an undo has moved the object back, and not brought back what it had replaced
}

// ErrNothing reports a Selection that means no change.
type ErrNothing struct {
	Why       string
	Unchanged bool // there is no such change; else what the Selection names is not there
}

func (e *ErrNothing) Error() string { return e.Why }

// find returns the records that sel means, and all later ones.
func (s *Store) find(sel Selection) (*selected, error) {
	loaded, picks, from, err := s.meant(sel)
	if err != nil {
		return nil, err
	}
	found := joined(loaded, func(g *generationRecords, r *journal.Record) bool {
		named := sel.below(r.Path) || r.Kind != journal.Linked && r.To != "" && sel.below(r.To) || r.Kind == journal.Written
		return r.Seq > from && named && picks(g)
	})
	found.force = sel.Force
	if len(sel.Paths) > 0 {
		found.pickMoved(func(e *entry) bool { return e.Seq > from && picks(e.gen) })
	}
	for i := range found.records {
		if e := &found.records[i]; e.picked && s.leaves(&sel, e) {
			e.picked = false
		}
	}
	found.settle()
	first := slices.IndexFunc(found.records, func(e entry) bool { return e.picked })
	if first < 0 {
		return nil, &ErrNothing{"nothing was changed there", true}
	}
	found.records = found.records[first:]
	return found, nil
}

// joined returns the records of generations, in order.
func joined(loaded []*generationRecords, picks func(*generationRecords, *journal.Record) bool) *selected {
	found := &selected{alias: map[beneath.FileID]beneath.FileID{}, torn: map[beneath.FileID]bool{}}
	for _, g := range loaded {
		for _, r := range g.stands {
			found.alias[r.Other] = r.Object
		}
		for _, r := range g.records {
			found.records = append(found.records, entry{Record: r, gen: g, picked: picks(g, r)})
		}
	}
	slices.SortFunc(found.records, func(a, b entry) int { return bySeq(a.Record, b.Record) })
	return found
}

// settle removes the records that say nothing any more.
func (f *selected) settle() {
	f.older()
	f.cancel()
}

// meant returns all generations, with the records of those that sel means and of later ones. Meant are the records after from
// of the generations that picks returns.
func (s *Store) meant(sel Selection) (loaded []*generationRecords, picks func(*generationRecords) bool, from uint64, err error) {
	if loaded, err = s.outlines(); err != nil {
		return nil, nil, 0, err
	}
	_, horizon := s.points.list()
	if picks, from, err = sel.resolve(loaded); err != nil {
		return nil, nil, 0, err
	}
	if from > 0 && from < horizon {
		return nil, nil, 0, &ErrNothing{Why: "older changes were given up: give a time after " + timeOf(horizon).Format(time.RFC3339)}
	}
	return loaded, picks, from, s.loadSince(loaded, picks, from)
}

// outlines returns all generations without their records, and then the checkpoints.
func (s *Store) outlines() (all []*generationRecords, err error) {
	s.settle(nil)
	names, err := s.generations()
	if err != nil {
		return nil, err
	}
	for _, p := range names {
		g, err := s.outline(p)
		if err != nil {
			return nil, err
		}
		all = append(all, &g)
	}
	points, _ := s.points.list()
	for i := range points {
		all = append(all, &points[i])
	}
	return all, nil
}

// began returns the time before the selected changes: before the first that has changed the name or an object at rel, if there
// is one.
func (s *Store) began(rel string, sel Selection) (time.Time, error) {
	loaded, picks, from, err := s.meant(sel)
	if err != nil || from > 0 {
		return timeOf(from), err
	}
	var all []*journal.Record
	for _, g := range loaded {
		if picks(g) {
			all = append(all, g.records...)
		}
	}
	if len(all) == 0 {
		return time.Time{}, &ErrNothing{"nothing was changed there", true}
	}
	is := func(at string) bool { return at != "" && (at == rel || strings.HasPrefix(rel, at+"/")) }
	objects := map[beneath.FileID]bool{} // a file may have changed by another of its names
	for _, r := range all {
		if is(r.Path) || is(r.To) {
			objects[plain(r.Object)], objects[plain(r.Other)] = true, true
		}
	}
	delete(objects, beneath.FileID{})
	if named := slices.DeleteFunc(slices.Clone(all), func(r *journal.Record) bool { return !objects[plain(r.Object)] }); len(named) > 0 {
		all = named
	}
	first := slices.MinFunc(all, bySeq).Seq
	return timeOf(first - 1), nil
}

// loadSince loads the records of the generations that are meant, and of those with later ones.
func (s *Store) loadSince(all []*generationRecords, picks func(*generationRecords) bool, from uint64) error {
	first := uint64(math.MaxUint64)
	for _, g := range all {
		if g.some && g.until > from && picks(g) {
			first = min(first, max(g.began, from))
		}
	}
	for _, g := range all {
		if !g.some || g.until < first {
			continue
		}
		whole, err := s.load(g.past)
		if err != nil {
			return err
		}
		*g = whole
	}
	return nil
}

// resolve returns which generations are meant, and the record after which they are.
func (sel Selection) resolve(all []*generationRecords) (picks func(*generationRecords) bool, from uint64, err error) {
	picks, from, err = sel.named(all)
	if named := picks; err == nil && sel.Client != "" {
		picks = func(g *generationRecords) bool { return g.Undo == nil && g.Parent == sel.Client && named(g) }
	}
	if of := sel.work(); err == nil && of != "" && last(all, picks) == nil {
		err = &ErrNothing{"nothing was changed by that " + of, true}
	}
	return picks, from, err
}

// work returns what the selection names by its id: a call or a session.
func (sel Selection) work() string {
	switch {
	case len(sel.Calls) > 0:
		return "call"
	case sel.Session != "":
		return "session"
	}
	return ""
}

// named is resolve for the changes of all clients.
func (sel Selection) named(all []*generationRecords) (picks func(*generationRecords) bool, from uint64, err error) {
	everything := func(*generationRecords) bool { return true }
	switch {
	case sel.Undo:
		return sel.lastUndo(all)
	case len(sel.Calls) > 0:
		return func(g *generationRecords) bool { return slices.Contains(sel.Calls, g.Call) }, 0, nil
	case sel.Session != "":
		return func(g *generationRecords) bool {
			return g.Undo == nil && (g.Session == sel.Session || g.Parent == sel.Session)
		}, 0, nil
	case len(sel.Generations) > 0:
		return func(g *generationRecords) bool { return slices.Contains(sel.Generations, idOf(g.began)) }, 0, nil
	case sel.Checkpoint != "":
		g, err := sel.point(all)
		if err != nil {
			return nil, 0, err
		}
		return everything, g.began, nil
	case !sel.Since.IsZero():
		return everything, uint64(sel.Since.UnixNano()), nil
	case sel.Client != "":
		return everything, 0, nil
	}
	g := last(all, func(g *generationRecords) bool { return g.Undo == nil && g.some })
	if g == nil {
		return nil, 0, &ErrNothing{"nothing was changed", true}
	}
	owner := func(l Label) string {
		if l.Parent != "" {
			return l.Parent
		}
		return l.Session
	}
	return func(other *generationRecords) bool { return other.Undo == nil && owner(other.Label) == owner(g.Label) }, 0, nil
}

// point returns the last checkpoint of the selection's name or id.
func (sel Selection) point(all []*generationRecords) (*generationRecords, error) {
	g := last(all, func(g *generationRecords) bool {
		byID := idOf(g.began) == sel.Checkpoint && (sel.Client == "" || g.Parent == sel.Client)
		return byID || g.Checkpoint == sel.Checkpoint && g.Parent == sel.Client
	})
	if g == nil {
		return nil, &ErrNothing{Why: fmt.Sprintf("there is no checkpoint %q", sel.Checkpoint)}
	}
	return g, nil
}

// last returns the last generation for which is holds; nil if there is none.
func last(all []*generationRecords, is func(*generationRecords) bool) *generationRecords {
	for _, g := range slices.Backward(all) {
		if is(g) {
			return g
		}
	}
	return nil
}

// lastUndo is named for an undo that was not taken back as a whole: the one of Generations, or the last one of the operator or of his
// Command.
func (sel Selection) lastUndo(all []*generationRecords) (picks func(*generationRecords) bool, from uint64, err error) {
	taken := map[string]bool{}
	for _, g := range slices.Backward(all) {
		if g.Undo != nil && g.Redo && !g.Left && !taken[idOf(g.began)] { // an interrupted redo takes itself back
			for _, id := range g.Undo.Generations {
				taken[id] = true
			}
		}
	}
	g := last(all, func(g *generationRecords) bool {
		id := idOf(g.began)
		named := g.Undo != nil && g.Undo.Client == ""
		switch {
		case len(sel.Generations) > 0:
			named = slices.Contains(sel.Generations, id)
		case sel.Command != "":
			named = named && g.Undo.Command == sel.Command
		}
		return named && g.Undo != nil && !g.Redo && !taken[id]
	})
	switch {
	case g == nil && len(sel.Generations) > 0:
		return nil, 0, &ErrNothing{Why: fmt.Sprintf("there is no undo %q that could be taken back", sel.Generations[0])}
	case g == nil:
		return nil, 0, &ErrNothing{Why: "there is no undo that could be taken back"}
	}
	return func(other *generationRecords) bool { return other == g }, 0, nil
}

// below reports whether a path is one of those that are meant, or below one.
func (sel Selection) below(rel string) bool {
	if len(sel.Paths) == 0 {
		return true
	}
	return slices.ContainsFunc(sel.Paths, func(p string) bool { return p == "" || rel == p || strings.HasPrefix(rel, p+"/") })
}
