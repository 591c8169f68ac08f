package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Plan has the steps of an undo, and its conflicts.
type Plan struct {
	Steps     []Step    `json:"steps"`     // in the order in which they are done
	Conflicts []Problem `json:"conflicts"` // what others have changed since: it stays as it is
	Unkept    []Problem `json:"unkept"`    // what was not kept
}

// Step inverts one record.
type Step struct {
	Action Action `json:"action"`
	Path   string `json:"path"`
	To     string `json:"to,omitempty"`
	entry  *entry
	id     beneath.FileID // Copy, and Move of what is in the way: the object
	object beneath.FileID // Restore: the kept file
	seen   thing          // at Path, before the undo; without attr if an earlier step changes it
	twin   bool           // Move in a layer: a step before it has changed what the layer shows there
}

// Seen returns a text that differs if the step would act on another object, content or attributes.
func (s Step) Seen() string {
	text := fmt.Sprint(s.entry.Seq)
	if a := s.seen.attr; a != nil {
		text += fmt.Sprint(" ", s.seen.id, a.Mode, a.UID, a.GID)
		if !s.seen.dir { // whose times change with names in it
			text += fmt.Sprint(" ", a.Size, a.Mtime, s.seen.ctime)
		}
	}
	return text
}

// Action is the kind of a Step.
type Action string

// The actions of steps.
const (
	Remove    Action = "remove"
	Restore   Action = "restore" // a kept file at its name
	Return    Action = "return"  // a file that an undo has restored, to the history
	Mkdir     Action = "mkdir"
	Move      Action = "move" // Path to To
	Exchange  Action = "exchange"
	Copy      Action = "copy"    // of Path, as others have changed it, to To
	Rewrite   Action = "rewrite" // the content
	Attribute Action = "attributes"
	Reveal    Action = "reveal" // what the base of a layer has: the layer has nothing of its own there any more
)

// Problem is a path that an undo leaves as it is.
type Problem struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Plan returns what an undo of the selected changes would do.
func (s *Store) Plan(sel Selection, hooks Hooks) (*Plan, error) {
	_, w, err := s.inverted(sel, hooks)
	if err != nil {
		return nil, err
	}
	return &w.plan, nil
}

// replay inverts the picked records. A file keeps its name where what had that before does not come back.
func (s *Store) replay(found *selected, hooks Hooks) *world {
	for stays := map[string]string{}; ; {
		w, known := s.replayBut(stays, found, hooks), len(stays)
		for rel, why := range w.failed {
			st, err := s.tree.Stat(rel)
			if t, ok := w.names[rel]; ok && !t.there && err == nil && !st.IsDir() && w.below(rel) == nil {
				stays[rel] = why
			}
		}
		if len(stays) == known {
			return w
		}
	}
}

// replayBut inverts the picked records, the newest first, but those of names that stay.
func (s *Store) replayBut(stays map[string]string, found *selected, hooks Hooks) *world {
	w := &world{
		store: s, hooks: hooks, alias: maps.Clone(found.alias), torn: found.torn, force: found.force, any: found.any, stays: stays,
		failed: map[string]string{}, names: map[string]thing{}, kept: map[string]thing{}, twins: map[string]bool{}, revealed: map[string]bool{},
		blocked: map[beneath.FileID]string{}, listed: map[beneath.FileID]bool{}, skipped: map[beneath.FileID]bool{},
		states: map[beneath.FileID][]*entry{}, current: map[beneath.FileID]*journal.Attr{}, busy: map[beneath.FileID]bool{},
		before: map[beneath.FileID]*entry{}, where: map[beneath.FileID]string{}, stray: map[beneath.FileID]string{},
		content: map[beneath.FileID]*entry{}, later: map[beneath.FileID][]*entry{}, beside: map[beneath.FileID]bool{},
		causes: map[beneath.FileID]string{}, plan: Plan{Steps: []Step{}, Conflicts: []Problem{}, Unkept: []Problem{}},
	}
	for i := range found.records {
		e := &found.records[i]
		if e.picked && (e.Kind == journal.Content || e.Kind == journal.Made) || (e.picked || e.ours) && e.Kind == journal.Written {
			id := w.same(e.Object)
			w.states[id] = append(w.states[id], e)
		}
	}
	for i := range slices.Backward(found.records) {
		e := &found.records[i]
		switch {
		case e.picked:
			w.invert(e)
		case !e.lasting() && !e.gone:
			why := "changed since " + by(e)
			w.block(e.Object, why)
			w.block(e.Other, why)
		}
	}
	w.lost(found)
	w.times()
	return w
}

// times plans the times of the directories in which names have changed, after everything else. Alone they are planned
// only for directories that have others.
func (w *world) times() {
	alone := len(w.plan.Steps) == 0
	for id, e := range w.before {
		rel, known := w.where[id]
		if !known {
			rel, known = w.stray[id]
		}
		if t := w.at(rel); !known || !t.there || w.same(t.id) != id || w.blocked[id] != "" || alone && t.attr.Same(e.Attr) {
			continue
		}
		w.step(Attribute, e, rel, "")
	}
}

// OnlyTimes reports whether a step only sets the times of a directory.
func (s Step) OnlyTimes() bool { return s.Action == Attribute && s.entry.Flags&journal.Names != 0 }

// by names the call, session or client that made a change.
func by(e *entry) string {
	switch {
	case e.gen.Undo != nil:
		return "by an undo"
	case e.gen.Call != "":
		return "by call " + e.gen.Call
	case e.gen.Session != "":
		return "by session " + e.gen.Session
	}
	return "by another client"
}

func (w *world) block(id beneath.FileID, why string) {
	if id = w.same(id); id != (beneath.FileID{}) && w.blocked[id] == "" {
		w.blocked[id] = why
	}
}

// becauseOf begins the reason of a conflict that the conflict of another path causes.
const becauseOf = "because of "

// conflict notes that a record is not inverted, and blocks its object. What comes back no more because of that has the same reason.
func (w *world) conflict(e *entry, rel, why string) {
	why = strings.TrimPrefix(why, becauseOf+rel+": ")
	cause := why
	if !strings.HasPrefix(cause, becauseOf) {
		cause = becauseOf + rel + ": " + why
	}
	for _, id := range []beneath.FileID{e.Object, e.Other} {
		if id = w.same(id); id != (beneath.FileID{}) {
			w.causes[id] = cmp.Or(w.causes[id], cause)
		}
	}
	for _, name := range []string{e.Path, e.second()} {
		w.failed[name] = cmp.Or(w.failed[name], cause)
	}
	w.block(e.Object, why)
	w.listed[w.same(e.Object)] = true
	w.problem(&w.plan.Conflicts, rel, why)
}

func (w *world) problem(list *[]Problem, rel, why string) {
	if !slices.ContainsFunc(*list, func(p Problem) bool { return p.Path == rel }) {
		*list = append(*list, Problem{rel, why})
	}
}

// unknown is in place of the attributes of a file that a killed process had open for writing.
var unknown journal.Attr

// expects returns why the object of a record, found at a path, is not the one that the record left there.
func (w *world) expects(e *entry, t thing) string {
	id := w.same(e.Object)
	switch {
	case !t.there:
		return cmp.Or(w.blocked[id], w.causes[id], "it is not there any more")
	case t.id != id && w.same(t.id) != id && (w.blocked[id] != "" || !w.refreshed(e, t)):
		return w.taken(t)
	case w.blocked[id] != "":
		return w.blocked[id]
	}
	was, now := w.left(e, cmp.Or(w.current[id], t.attr))
	switch {
	case was == nil || w.torn[id] || w.any, was == &unknown && !t.regular():
	case w.current[id] == nil && w.hooks.writing(t.file):
		return errWriting.Error()
	case was == &unknown:
		return "how it was left is not known: the view ended while a program had it open"
	case now != nil && !now.Same(was):
		return "changed since by the host or another agent"
	}
	return ""
}

// left returns how the changes of an object up to the present step have left it; nil: it may be as it is. is is now, but for what an undo
// has left: that counts as what was there before the changes that the undo took back, which others may have made.
func (w *world) left(e *entry, now *journal.Attr) (was, is *journal.Attr) {
	list, busy := w.states[w.same(e.Object)], w.busy[w.same(e.Object)]
	for len(list) > 0 && !busy {
		last := list[len(list)-1]
		if u := last.undid; u != nil && u.Seq > e.Seq && now != nil && last.Attr != nil && now.Same(last.Attr) {
			list, now, busy = until(list, u.Seq), u.Attr, u.Flags&journal.Busy != 0
			continue
		}
		switch {
		case last.Kind == journal.Written:
			return cmp.Or(last.Attr, &unknown), now
		case last.Seq != e.Seq:
			return nil, now
		case e.Kind == journal.Made && e.Attr != nil && now != nil && now.Same(e.Attr):
			return e.Attr, now
		}
		return &unknown, now // it was open since then
	}
	return nil, now
}

// until returns the first entries of a list, up to the record seq.
func until(list []*entry, seq uint64) []*entry {
	for len(list) > 0 && list[len(list)-1].Seq >= seq {
		list = list[:len(list)-1]
	}
	return list
}

// back notes that an object is as it was before a record.
func (w *world) back(e *entry, attr *journal.Attr) {
	id := w.same(e.Object)
	w.states[id] = until(w.states[id], e.Seq)
	w.current[id], w.busy[id] = attr, e.Flags&journal.Busy != 0
}

// may returns why the rules of the agent do not let it change a path.
func (w *world) may(rels ...string) string {
	for _, rel := range rels {
		if w.hooks.May == nil || rel == "" {
			continue
		}
		if err := w.hooks.May(rel, nil); err != nil {
			return err.Error()
		}
	}
	return ""
}

// mayMove returns the reason for which the agent's rules refuse to move a thing, with what is below it, between paths; "": they allow
// it.
func (w *world) mayMove(t thing, rels ...string) string {
	for _, rel := range rels {
		if !t.dir || w.hooks.Move == nil {
			continue
		}
		if err := w.hooks.Move(rel); err != nil {
			return err.Error()
		}
	}
	return ""
}

func (w *world) step(a Action, e *entry, path, to string) {
	step := Step{Action: a, Path: path, To: to, entry: e, seen: w.at(path), twin: w.revealed[path] || w.revealed[to]}
	if w.current[w.same(step.seen.id)] != nil {
		step.seen.attr = nil
	}
	w.plan.Steps = append(w.plan.Steps, step)
}

// copyBeside plans a copy of a file that others have changed since. It reports whether the file may be changed then.
func (w *world) copyBeside(e *entry, t thing) bool {
	id := w.same(e.Object)
	if !w.force || !t.there || t.dir || w.same(t.id) != id || e.Why != "" {
		return false
	}
	if !w.beside[id] {
		to := w.newer(e.Path)
		w.plan.Steps = append(w.plan.Steps, Step{Action: Copy, Path: e.Path, To: to, entry: e, id: t.id})
		w.names[to] = thing{there: true, attr: t.attr}
		w.beside[id] = true
	}
	delete(w.blocked, id)
	return true
}

// moveBeside plans another name for what is in the way of an object that comes back.
func (w *world) moveBeside(e *entry, rel string) {
	t := w.at(rel)
	if dir := beneath.Parent(rel); !w.force || !t.there || dir != "" && !w.at(dir).there {
		return
	}
	to := w.newer(rel)
	w.plan.Steps = append(w.plan.Steps, Step{Action: Move, Path: rel, To: to, entry: e, id: t.id})
	w.rename(rel, to, t)
}

// invert plans the inverse of a record.
func (w *world) invert(e *entry) {
	if e.gone && e.timesBefore() {
		w.timesOf(e)
		return
	}
	if w.skipped[e.Object] && !slices.Contains([]journal.Kind{journal.Moved, journal.Made, journal.Exchanged, journal.Shown}, e.Kind) {
		return
	}
	if why := cmp.Or(w.stays[e.Path], w.stays[e.second()], w.may(e.Path, e.second())); why != "" && !e.gone {
		if !e.lasting() {
			w.conflict(e, cmp.Or(e.second(), e.Path), why)
		}
		return
	}
	switch e.Kind {
	case journal.Made, journal.Linked, journal.Restored:
		w.invertMade(e)
	case journal.Removed, journal.Returned:
		w.invertRemoved(e)
	case journal.Moved:
		w.invertMoved(e)
	case journal.Exchanged:
		w.invertExchanged(e)
	case journal.Content, journal.Attributes:
		w.invertContent(e)
	case journal.Shown:
		w.invertShown(e)
	case journal.Lost:
		w.problem(&w.plan.Unkept, e.Path, e.Why)
	}
}

// second returns the second path of a record.
func (e *entry) second() string {
	if e.Kind == journal.Moved || e.Kind == journal.Exchanged {
		return e.To
	}
	return ""
}

func (w *world) invertMade(e *entry) {
	if e.Kind == journal.Made { // an older object may have had its identity
		defer func() {
			w.back(e, nil)
			delete(w.later, w.same(e.Object))
		}()
	}
	if e.Kind == journal.Linked && w.twins[e.Path] {
		delete(w.twins, e.Path)
		if t := w.at(e.To); t.there && w.same(t.id) == w.same(e.Object) {
			w.found(e.Object, e.To) // its other name
		}
		return
	}
	if e.Kind == journal.Made && w.skipped[e.Object] {
		delete(w.skipped, e.Object)
		return
	}
	t := w.at(e.Path)
	why := w.expects(e, t)
	id := w.same(e.Object)
	copied := e.Kind == journal.Made && e.To != ""
	if !t.there && w.blocked[id] == "" && !copied && w.below(e.Path) != nil {
		why = "it is in the directory: it was committed, or the host has made it"
	} else if !t.there && (w.blocked[id] == "" || w.listed[id]) {
		return // somebody has removed it already, or its other name is a conflict
	}
	if why == "" && t.dir {
		why = w.full(e.Path)
	}
	if why != "" {
		w.conflict(e, e.Path, why)
		return
	}
	if e.Kind == journal.Restored {
		w.step(Return, e, e.Path, e.To)
		w.kept[e.To] = t
	} else if copied {
		w.step(Reveal, e, e.Path, "")
	} else {
		w.step(Remove, e, e.Path, "")
	}
	w.names[e.Path] = thing{}
}

func (w *world) invertRemoved(e *entry) {
	if e.Flags&journal.Twin != 0 {
		w.twins[e.Path] = true
		return
	}
	if e.Flags&journal.Born != 0 {
		w.skipped[e.Object] = true
		return
	}
	w.moveBeside(e, e.Path)
	if why := cmp.Or(w.free(e.Path), w.hides(e)); why != "" {
		w.conflict(e, e.Path, why)
		return
	}
	w.comeBack(e, e.Object, e.Path)
}

// comeBack plans the return of an object that a record has removed or replaced.
func (w *world) comeBack(e *entry, id beneath.FileID, rel string) {
	switch {
	case e.Flags&journal.Born != 0:
		w.skipped[id] = true
	case e.Flags&journal.Directory != 0:
		w.step(Mkdir, e, rel, "")
		delete(w.before, w.same(id)) // later times are of one that an undo made for it
		w.clear(rel)
		w.names[rel] = thing{there: true, id: w.same(id), dir: true, fresh: true}
		w.where[w.same(id)] = rel
	case e.Kept == 0 && e.Kind != journal.Returned:
		w.problem(&w.plan.Unkept, rel, e.Why)
		w.block(id, e.Why)
	default:
		at := e.keptAt()
		t, returned := w.kept[at]
		if !returned {
			st, err := w.store.dir.Stat(at)
			if err != nil {
				w.problem(&w.plan.Unkept, rel, "the kept file is gone")
				w.block(id, "the kept file is gone")
				return
			}
			t = thing{there: true, id: plain(st.ID()), file: st.ID(), kept: at, attr: journal.AttrOf(&st)}
		}
		w.step(Restore, e, rel, at)
		w.plan.Steps[len(w.plan.Steps)-1].object = t.id
		w.names[rel] = t
		w.found(id, rel)
	}
}

// found inverts the records of an object that is at a path again.
func (w *world) found(id beneath.FileID, rel string) {
	later := w.later[w.same(id)]
	delete(w.later, w.same(id))
	for _, e := range later {
		named := *e
		record := *e.Record
		named.Record, record.Path, record.Flags = &record, rel, e.Flags&^journal.Unnamed
		w.invertContent(&named)
	}
}

// lost notes conflicts of the objects that are not found, unless another file stands for one.
func (w *world) lost(found *selected) {
	missing := slices.SortedFunc(maps.Keys(w.later), func(a, b beneath.FileID) int {
		return bySeq(w.later[a][0].Record, w.later[b][0].Record)
	})
	for _, id := range missing {
		later := w.later[id]
		if w.standsIn(id, later, found) {
			continue
		}
		for _, e := range later {
			if e.Flags&journal.Unnamed == 0 && !w.skipped[e.Object] {
				w.conflict(e, e.Path, w.expects(e, w.at(e.Path)))
			}
		}
	}
}

// standsIn has a file that nobody of the view has put at the path of a changed one stand for it, with force, and where only the
// content before counts: an editor and a restore make another object of the same name. It does so if the whole content was kept.
// later are the records of the changed file, the newest first.
func (w *world) standsIn(id beneath.FileID, later []*entry, found *selected) bool {
	e, t := later[len(later)-1], w.at(later[0].Path)
	named := func(one *entry) bool {
		return one.Kind == journal.Content && one.Path == e.Path && one.Flags&(journal.Unnamed|journal.Blocks) == 0 && one.Why == ""
	}
	ours := func(r entry) bool { return w.same(r.Object) == t.id || w.same(r.Other) == t.id }
	if !w.force && !w.any || !t.regular() || w.skipped[id] || !named(e) || slices.ContainsFunc(found.records, ours) ||
		slices.ContainsFunc(later, func(one *entry) bool { return one.Kind == journal.Content && !named(one) }) {
		return false
	}
	w.alias[id] = t.id
	w.states[t.id] = []*entry{e} // not as the changes left it: a copy is made
	w.invertContent(e)
	return true
}

// keptAt returns the path of the kept file of a record, in the history.
func (e *entry) keptAt() string {
	if e.Kind == journal.Returned {
		return e.To
	}
	return e.gen.name + "/" + keptName(e.Kept)
}

func (w *world) invertMoved(e *entry) {
	if e.gone || e.half { // it still ends what it replaced, and moves directories back
		if e.gone && e.Flags&journal.Born != 0 {
			w.skipped[e.Other] = true
		}
		w.strayBack(e)
	}
	if e.gone {
		return
	}
	if !w.skipped[e.Object] && !e.half {
		t := w.at(e.To)
		why := w.expects(e, t)
		if why != "" && w.force && t.there && w.same(t.id) == w.same(e.Object) {
			why = "" // it keeps its newer state
		}
		if why != "" && w.replacedBeside(e, t) {
			w.comeBack(e, e.Other, e.To)
			return
		}
		why = cmp.Or(why, w.mayMove(t, e.To, e.Path))
		if why == "" {
			w.moveBeside(e, e.Path)
			why = cmp.Or(w.free(e.Path), w.hides(e))
		}
		if why != "" {
			w.conflict(e, e.To, why)
			w.block(e.Other, why)
			return
		}
		w.step(Move, e, e.To, e.Path)
		w.rename(e.To, e.Path, t)
		w.found(e.Object, e.Path)
	}
	if e.Other != (beneath.FileID{}) {
		w.comeBack(e, e.Other, e.To)
	}
}

// replacedBeside has the file that others have put in the place of a moved one make room for what the move had replaced, with force. The
// moved one was made by the selected changes: an undo removes it anyway.
func (w *world) replacedBeside(e *entry, t thing) bool {
	id := w.same(e.Object)
	made := slices.ContainsFunc(w.states[id], func(one *entry) bool { return one.Kind == journal.Made })
	if !w.force || !made || w.blocked[id] != "" || t.there && (t.dir || w.same(t.id) == id) || !e.replacesFile() {
		return false
	}
	w.moveBeside(e, e.To)
	if w.free(e.To) != "" {
		return false
	}
	w.skipped[e.Object] = true
	return true
}

// replacesFile reports whether a move has replaced a file that was kept, or that the same generation had made.
func (e *entry) replacesFile() bool {
	return e.Other != (beneath.FileID{}) && e.Flags&journal.Directory == 0 && (e.Kept != 0 || e.Flags&journal.Born != 0)
}

// strayBack moves the directories back that are not at the paths of the records.
func (w *world) strayBack(e *entry) {
	for id, rel := range w.stray {
		if rest, ok := strings.CutPrefix(rel+"/", e.To+"/"); ok {
			w.stray[id] = strings.TrimSuffix(e.Path+"/"+rest, "/")
		} else if rest, ok := strings.CutPrefix(rel+"/", e.Path+"/"); ok && e.Kind == journal.Exchanged {
			w.stray[id] = strings.TrimSuffix(e.To+"/"+rest, "/")
		}
	}
}

func (w *world) invertExchanged(e *entry) {
	if e.gone {
		w.strayBack(e)
		return
	}
	switch object, other := w.skipped[e.Object], w.skipped[e.Other]; {
	case object && other:
		return
	case object:
		w.invertHalf(e, e.Other, e.Path, e.To)
		return
	case other:
		w.invertHalf(e, e.Object, e.To, e.Path)
		return
	}
	a, b := w.at(e.Path), w.at(e.To) // Other and Object
	why := w.expects(e, b)
	if why == "" && (!a.there || w.same(a.id) != w.same(e.Other)) {
		why = cmp.Or(w.causes[w.same(e.Other)], w.taken(a))
	}
	why = cmp.Or(why, w.blocked[w.same(e.Other)], w.mayMove(a, e.Path, e.To), w.mayMove(b, e.Path, e.To))
	if why != "" {
		w.conflict(e, e.To, why)
		w.block(e.Other, why)
		return
	}
	w.step(Exchange, e, e.Path, e.To)
	const aside = "\x00"
	w.rename(e.Path, aside, a)
	w.rename(e.To, e.Path, b)
	w.rename(aside, e.To, a)
	delete(w.names, aside)
	w.found(e.Object, e.Path)
	w.found(e.Other, e.To)
}

// invertHalf moves one object of an exchange back. The other one was made and removed by one generation.
func (w *world) invertHalf(e *entry, id beneath.FileID, from, to string) {
	half := *e
	record := *e.Record
	half.Record, record.Object = &record, id
	t := w.at(from)
	why := cmp.Or(w.expects(&half, t), w.mayMove(t, from, to))
	if why == "" {
		why = w.free(to)
	}
	if why != "" {
		w.conflict(&half, from, why)
		return
	}
	w.step(Move, &half, from, to)
	w.rename(from, to, t)
	w.found(id, to)
}

// timesOf notes the times that a directory had before a record.
func (w *world) timesOf(e *entry) {
	id := w.same(e.Object)
	alone := *e
	record := *e.Record
	alone.Record, record.Flags = &record, e.Flags|journal.Names
	w.before[id] = &alone
	if t := w.at(e.Path); t.there && w.same(t.id) == id {
		w.where[id] = e.Path
	} else {
		w.stray[id] = e.Path
	}
}

func (w *world) invertContent(e *entry) {
	t, id := w.at(e.Path), w.same(e.Object)
	if e.Flags&journal.Unnamed != 0 || e.Flags&journal.Names == 0 && w.blocked[id] == "" && (!t.there || w.same(t.id) != id) {
		w.later[id] = append(w.later[id], e) // another client has moved it between the lookup and the record
		return
	}
	why := w.expects(e, t)
	if e.Kind == journal.Content && t.there && w.same(t.id) == id {
		w.content[id] = e
	}
	switch {
	case e.Flags&journal.Names != 0:
		w.timesOf(e)
		return
	case why != "" && !w.copyBeside(e, t):
		w.conflict(e, e.Path, why)
		return
	case e.Kind == journal.Attributes:
		w.step(Attribute, e, e.Path, "")
		if e.Flags&journal.Directory != 0 {
			w.timesOf(e)
		}
	case e.Why != "":
		w.problem(&w.plan.Unkept, e.Path, e.Why)
		w.block(id, e.Why)
		return
	default:
		w.step(Rewrite, e, e.Path, "")
	}
	w.back(e, e.Attr)
}
