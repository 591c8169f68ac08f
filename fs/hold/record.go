package hold

import (
	"encoding/json"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/scope/beneath"
)

// record is what the journal says of a path, and below it. One that is not set says nothing of the path itself.
type record struct {
	shown
	kids map[string]*record
}

// shown is what a path shows of Base: the object at another path, or nothing.
type shown struct {
	set   bool
	there bool
	base  string
}

// gone is of a path that shows nothing of Base.
var gone = shown{set: true}

func (r *record) kidsOf() map[string]*record {
	if r == nil {
		return nil
	}
	return r.kids
}

// at returns the record of a path below r; nil: there is none at or below it.
func (r *record) at(rel string) *record {
	for rel != "" && r != nil {
		name, rest, _ := strings.Cut(rel, "/")
		r, rel = r.kids[name], rest
	}
	return r
}

// resolve returns the path in Base of what a path shows; false: it shows nothing of Base.
func (r *record) resolve(rel string) (base string, there bool) {
	there = true
	for rest := rel; rest != ""; {
		name, after, _ := strings.Cut(rest, "/")
		if r != nil {
			r = r.kids[name]
		}
		switch {
		case r != nil && r.set:
			base, there = r.base, r.there
		case r == nil && there:
			return beneath.Join(base, rest), true
		case r == nil:
			return "", false
		default:
			base = beneath.Join(base, name)
		}
		rest = after
	}
	return base, there
}

// usual returns the path in Base that a path shows without a record of its own.
func (r *record) usual(rel string) (base string, there bool) {
	base, there = r.resolve(beneath.Parent(rel))
	return beneath.Join(base, beneath.Base(rel)), there
}

// make returns the record of a path, which it makes.
func (r *record) make(rel string) *record {
	for rel != "" {
		name, rest, _ := strings.Cut(rel, "/")
		kid := r.kids[name]
		if kid == nil {
			if kid = (&record{}); r.kids == nil {
				r.kids = map[string]*record{}
			}
			r.kids[name] = kid
		}
		r, rel = kid, rest
	}
	return r
}

// trim removes empty records on the way to a path.
func (r *record) trim(rel string) {
	name, rest, more := strings.Cut(rel, "/")
	kid := r.kids[name]
	if kid == nil {
		return
	}
	if more {
		kid.trim(rest)
	}
	if !kid.set && len(kid.kids) == 0 {
		delete(r.kids, name)
	}
}

// each calls f for the paths that are set, at and below rel.
func (r *record) each(rel string, f func(rel string, r *record)) {
	if r == nil {
		return
	}
	if r.set {
		f(rel, r)
	}
	for name, kid := range r.kids {
		kid.each(beneath.Join(rel, name), f)
	}
}

// line is an entry of the journal.
type line struct {
	Op   string `json:"o"`
	Path []byte `json:"p"` // JSON has no strings that are not UTF-8
	To   []byte `json:"t,omitempty"`

	Left  state `json:"l,omitzero"` // opMove, opSwap: what Path shows then
	Shows state `json:"s,omitzero"` // what Path shows then, or To of opMove and opSwap

	From object `json:"f,omitzero"` // opMove, opSwap: Upper's object at Path before; zero: none
	Over object `json:"x,omitzero"` // likewise at To: opMove replaces it

	Seq uint64 `json:"q,omitempty"` // of the record of a history
}

// object identifies an object of Upper.
type object struct {
	Ino   uint64 `json:"i"`
	Birth int64  `json:"b,omitempty"`
}

func objectOf(st *beneath.Stat) object { return object{st.Ino, st.ID().Birth} }

// state is a shown in JSON.
type state struct {
	Set  bool   `json:"s,omitempty"`
	Base []byte `json:"b,omitempty"`
	At   bool   `json:"t,omitempty"`
}

func stateOf(s shown) state  { return state{s.set, []byte(s.base), s.there} }
func (s state) shown() shown { return shown{s.Set, s.At, string(s.Base)} }

// The operations of a line.
const (
	opSet   = "set"   // what a path shows; records below it stay
	opDrop  = "drop"  // likewise, and records below it go
	opMove  = "move"  // the records below a path move to another one
	opSwap  = "swap"  // those of two paths are exchanged
	opCarry = "carry" // opMove of a directory that moves in Base, too
	opCopy  = "copy"  // From is a copy of the file of Base with the inode number of Over
	opOut   = "out"   // Upper's object at a path is in Stage by the name To, for a moment
	opDone  = "done"  // nothing
)

// apply changes the records as a line says.
func (r *record) apply(l *line) {
	path, to := string(l.Path), string(l.To)
	if l.Op == opCopy || l.Op == opOut || l.Op == opDone {
		return
	}
	take := func(rel string) map[string]*record {
		one := r.make(rel)
		kids := one.kids
		one.kids = nil
		return kids
	}
	put := func(rel string, kids map[string]*record, s state) {
		one := r.make(rel)
		one.kids, one.shown = kids, s.shown()
	}
	switch l.Op {
	case opSet:
		r.make(path).shown = l.Shows.shown()
	case opDrop:
		take(path)
		r.make(path).shown = l.Shows.shown()
	case opMove, opCarry:
		kids := take(path)
		take(to)
		r.make(path).shown = l.Left.shown()
		put(to, kids, l.Shows)
		if l.Op == opCarry {
			r.rebase(path, to)
		}
	case opSwap:
		a, b := take(path), take(to)
		put(path, b, l.Left)
		put(to, a, l.Shows)
	}
	r.trim(path)
	r.trim(to)
}

// rebase replaces the paths in Base at and below from: a directory of Base has moved.
func (r *record) rebase(from, to string) {
	r.each("", func(_ string, one *record) {
		if below, ok := strings.CutPrefix(one.base, from); one.there && ok && (below == "" || below[0] == '/') {
			one.base = to + below
		}
	})
}

// write appends lines to the journal, and applies them. The caller holds mu.
func (l *Layers) write(lines ...line) error {
	if err := journal.AppendJSON(l.log, lines...); err != nil {
		return err
	}
	l.dirty.Store(true)
	last := &lines[len(lines)-1]
	l.announced = last.announces()
	for i := range lines {
		l.records.apply(&lines[i])
		l.add(&lines[i])
	}
	if l.log.Size() > l.compactAt && !l.announced && l.compact() != nil {
		l.compactAt *= 2 // the journal that is there does
	}
	return nil
}

// add applies a line to the copies and to last. The caller holds mu.
func (l *Layers) add(n *line) {
	l.last = max(l.last, n.Seq)
	if n.Op == opCopy {
		l.copied[n.From.Ino] = copied{n.From.Birth, n.Over.Ino}
	}
}

// minCompact is the size of the smallest journal that is written anew, in bytes.
const minCompact = 1 << 20

// compact replaces the journal by one of the present records. The caller holds mu.
func (l *Layers) compact() error {
	top, err := l.State.Dir("")
	if err != nil {
		return err
	}
	defer top.Close()
	const name = JournalName + ".new"
	if err := top.Unlink(name); err != nil && err != unix.ENOENT { // of a process that was killed
		return err
	}
	log, err := journal.OpenLog(top, name, journal.Lines, true, func([]byte) bool { return true })
	if err != nil {
		return err
	}
	lines := l.records.dump("")
	for ino, c := range l.copied {
		lines = append(lines, line{Op: opCopy, From: object{ino, c.birth}, Over: object{Ino: c.ino}})
	}
	lines = append(lines, line{Op: opDone, Seq: l.last})
	if err = journal.AppendJSON(log, lines...); err == nil {
		err = log.Sync(true)
	}
	if err == nil {
		err = top.Rename(name, top, JournalName, 0)
	}
	if err != nil {
		log.Close()
		return err
	}
	l.log.Close()
	l.log, l.compactAt = log, max(minCompact, 4*log.Size())
	return nil
}

// dump returns lines that set the records at and below a path.
func (r *record) dump(rel string) (lines []line) {
	r.at(rel).each(rel, func(rel string, one *record) {
		lines = append(lines, line{Op: opSet, Path: []byte(rel), Shows: stateOf(one.shown)})
	})
	return lines
}

// Load reads the journal, drops the end that a crash has torn, and does what the last line has announced. The caller holds the gate, or
// is alone.
func (l *Layers) Load() error { return l.load(true) }

// Read reads the journal while another process may change it. Nothing may be changed until Load.
func (l *Layers) Read() error { return l.load(false) }

func (l *Layers) load(own bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	top, err := l.State.Dir("")
	if err != nil {
		return err
	}
	defer top.Close()
	records, last := &record{}, line{}
	l.copied = map[uint64]copied{}
	log, err := journal.OpenLog(top, JournalName, journal.Lines, own, func(text []byte) bool {
		var next line
		if json.Unmarshal(text, &next) != nil {
			return false
		}
		records.apply(&next)
		l.add(&next)
		last = next
		return true
	})
	if err != nil {
		return fmt.Errorf("%s: %w", JournalName, err)
	}
	if l.log != nil {
		l.log.Close()
	}
	l.log, l.records, l.announced = log, records, last.announces()
	l.compactAt = max(minCompact, l.compactAt)
	if !own {
		return nil
	}
	return l.finish(&last)
}

// begin ends what the last line of the journal has announced: finish must not find an object that comes back to its old name. It is called
// before each change of names in Upper. The caller holds mu.
func (l *Layers) begin() error {
	if !l.announced {
		return nil
	}
	return l.write(line{Op: opDone})
}

// announces reports whether finish may have something to do.
func (n *line) announces() bool {
	return n.Op == opOut || n.Op != opCopy && (n.From != object{} || n.Over != object{})
}

// finish does in Upper what a line has announced, unless that is done.
func (l *Layers) finish(n *line) error {
	from, to := string(n.Path), string(n.To)
	if n.Op == opOut {
		return l.putBack(to, from)
	}
	at, id := from, n.From
	if n.From == (object{}) {
		at, id = to, n.Over
	}
	if st, err := l.Upper.Stat(at); id == (object{}) || err != nil || objectOf(&st) != id {
		return nil
	}
	return l.shift(from, to, n.From != object{}, n.Over != object{}, n.Op == opSwap)
}

// shift does in Upper what opMove and opSwap announce. has and over report whether Upper has the paths.
func (l *Layers) shift(from, to string, has, over, swap bool) error {
	switch {
	case has && over && swap:
		return l.moveUpper(from, to, unix.RENAME_EXCHANGE)
	case has:
		return l.moveUpper(from, to, 0)
	case over && swap:
		return l.moveUpper(to, from, 0)
	case over:
		return l.removeUpper(to)
	}
	return nil
}

// putBack gives an object of Stage its name in Upper again, if it is there.
func (l *Layers) putBack(name, rel string) error {
	stage, err := l.Stage.Dir("")
	if err != nil {
		return err
	}
	defer stage.Close()
	if _, err := stage.Stat(name); err == unix.ENOENT {
		return nil
	}
	dir, err := l.Upper.Dir(beneath.Parent(rel))
	if err != nil {
		return err
	}
	defer dir.Close()
	return stage.Rename(name, dir, beneath.Base(rel), unix.RENAME_NOREPLACE)
}

// moveUpper renames in Upper.
func (l *Layers) moveUpper(from, to string, flags uint) error {
	a, err := l.Upper.Dir(beneath.Parent(from))
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := l.Upper.Dir(beneath.Parent(to))
	if err != nil {
		return err
	}
	defer b.Close()
	return a.Rename(beneath.Base(from), b, beneath.Base(to), flags)
}

// removeUpper removes an object of Upper: a directory if it is empty.
func (l *Layers) removeUpper(rel string) error {
	dir, err := l.Upper.Dir(beneath.Parent(rel))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Remove(beneath.Base(rel))
}
