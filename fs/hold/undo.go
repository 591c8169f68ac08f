package hold

import (
	"encoding/json"
	"errors"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// kept is what a history keeps of a change of the records: the data of journal.Shown.
type kept struct {
	Back   []line      `json:"b"`           // lines that revert it
	Are    []line      `json:"a,omitempty"` // opSet of the paths that it changes, as it leaves them
	Bare   []byte      `json:"n,omitempty"` // a path that it leaves without records below it
	Object *plan.Ident `json:"o,omitempty"` // of Base, that it reveals

	// Part says that it is a part of another change, with the records below a path. To revert what reverts it is nothing: that of the other
	// change drops these records.
	Part bool `json:"p,omitempty"`
}

var _ history.Layer = (*Layers)(nil)

// own returns what the record of a path says of the path itself.
func (r *record) own(rel string) shown {
	if r = r.at(rel); r == nil {
		return shown{}
	}
	return r.shown
}

func setLine(rel string, s shown) line { return line{Op: opSet, Path: []byte(rel), Shows: stateOf(s)} }

// below returns lines that set the records below a path.
func (r *record) below(rel string) (lines []line) {
	for _, n := range r.dump(rel) {
		if string(n.Path) != rel {
			lines = append(lines, n)
		}
	}
	return lines
}

// keep returns what a history keeps of the change that a line is about to make. more are lines that revert the rest, after that.
func (r *record) keep(n *line) (k kept, more []line) {
	path, to := string(n.Path), string(n.To)
	is, other := r.own(path), r.own(to)
	switch n.Op {
	case opSet: // it reverts opDrop
		k.Back = []line{{Op: opDrop, Path: n.Path, Shows: stateOf(is)}}
	case opDrop:
		more, k.Bare = r.below(path), n.Path
		k.Back = []line{setLine(path, is)}
	case opMove:
		k.Back = []line{{Op: opMove, Path: n.To, To: n.Path, Left: stateOf(other), Shows: stateOf(is)}}
		more, k.Bare = r.below(to), n.Path
	case opSwap:
		k.Back = []line{{Op: opSwap, Path: n.Path, To: n.To, Left: stateOf(is), Shows: stateOf(other)}}
	}
	if n.Op == opSet || n.Op == opDrop {
		k.Are = []line{setLine(path, n.Shows.shown())}
	} else {
		k.Are = []line{setLine(path, n.Left.shown()), setLine(to, n.Shows.shown())}
	}
	return k, more
}

// maxPart bounds the lines of one record of a history, in bytes.
const maxPart = 128 << 10

// parts returns the data of records that are reverted one after the other.
func parts(lines []line) (all [][]byte, err error) {
	for len(lines) > 0 {
		k, size := kept{Part: true}, 0
		for len(lines) > 0 && size < maxPart {
			n := lines[0]
			k.Back = append(k.Back, n)
			size += len(n.Path) + len(n.Shows.Base)
			lines = lines[1:]
		}
		data, err := json.Marshal(&k)
		if err != nil {
			return nil, err
		}
		all = append(all, data)
	}
	return all, nil
}

// showing has a history keep the change that the line of lines is about to make, and numbers it. id is of the object of Upper that moves as
// well. reverts says that the line reverts another change. The caller holds mu.
func (l *Layers) showing(w *history.Writer, id beneath.FileID, lines []line, reverts bool) (*history.Showing, error) {
	if w == nil {
		return nil, nil
	}
	n := &lines[0]
	k, more := l.records.keep(n)
	if reverts { // parts may follow, whose records stay until the next change drops them
		k.Bare = nil
	}
	path := string(n.Path)
	if is := l.records.own(path); n.Op == opSet && is == gone && n.Shows.shown() != gone {
		base, there := l.records.usual(path)
		if s := n.Shows.shown(); s.set {
			base, there = s.base, s.there
		}
		if st, err := l.Base.Stat(base); there && err == nil {
			k.Object = new(plan.IdentOf(&st))
		}
	}
	data, err := json.Marshal(&k)
	if err != nil {
		return nil, err
	}
	rest, err := parts(more)
	if err != nil {
		return nil, err
	}
	s, err := w.Shown(path, string(n.To), id, data, rest...)
	n.Seq = s.Seq()
	return s, err
}

// Last implements history.Layer.
func (l *Layers) Last() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.last
}

// sketch implements history.Shows.
type sketch struct{ Layers }

// Plan implements history.Layer.
func (l *Layers) Plan() history.Shows {
	l.mu.RLock()
	defer l.mu.RUnlock()
	s := &sketch{Layers{Base: l.Base, records: &record{}}}
	for _, n := range l.records.dump("") {
		s.records.apply(&n)
	}
	return s
}

// Revert implements history.Shows.
func (s *sketch) Revert(data []byte, empty func(rel string) bool) (why string) {
	k := kept{}
	if err := json.Unmarshal(data, &k); err != nil {
		return err.Error()
	}
	if why = s.differs(&k, empty); why == "" {
		for i := range k.Back {
			s.records.apply(&k.Back[i])
		}
	}
	return why
}

// differs returns why a change cannot be reverted.
func (s *sketch) differs(k *kept, empty func(rel string) bool) (why string) {
	for _, n := range k.Are {
		if s.records.own(string(n.Path)) != n.Shows.shown() {
			return "changed since: moved or removed, committed or discarded"
		}
	}
	if len(k.Bare) > 0 && len(s.records.below(string(k.Bare))) > 0 {
		return "another object is there"
	}
	if k.Part || k.Back[0].Op != opDrop || k.Back[0].Shows.shown() != gone {
		return ""
	}
	rel := string(k.Back[0].Path)
	at, err := s.Below(rel)
	switch {
	case err != nil:
		return ""
	case k.Object != nil && !k.Object.SameContent(plan.IdentOf(&at.Stat)):
		return "changed since by the host"
	case at.Stat.IsDir() && (!empty(rel) || !s.bare(rel)):
		return "the directory has files of others"
	}
	return ""
}

// bare reports whether a directory shows nothing of Base.
func (s *sketch) bare(rel string) bool {
	kids := s.records.at(rel).kidsOf()
	base, _ := s.records.resolve(rel)
	names, err := s.Base.Names(base)
	for _, name := range names {
		if kid := kids[name]; kid == nil || !kid.set {
			return false
		}
	}
	for _, kid := range kids {
		if kid.there {
			return false
		}
	}
	return err == nil
}

// Revert implements history.Layer.
func (l *Layers) Revert(w *history.Writer, id beneath.FileID, data []byte) error {
	k := kept{}
	if err := json.Unmarshal(data, &k); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.begin(); err != nil {
		return err
	}
	s := sketch{Layers{Base: l.Base, records: l.records}}
	if why := s.differs(&k, func(rel string) bool { names, err := l.Upper.Names(rel); return err != nil || len(names) == 0 }); why != "" {
		return errors.New(why)
	}
	var shown *history.Showing
	var err error
	if k.Part {
		shown, err = l.showingPart(w, k.Back)
	} else {
		shown, err = l.showing(w, id, k.Back, true)
	}
	if err == nil && len(k.Back) > 0 {
		err = l.write(k.Back...)
	}
	if err != nil {
		shown.Void()
		return err
	}
	shown.Done()
	return nil
}

// showingPart is showing for a part of another change.
func (l *Layers) showingPart(w *history.Writer, lines []line) (*history.Showing, error) {
	data, err := json.Marshal(&kept{Part: true})
	if err != nil {
		return nil, err
	}
	s, err := w.Shown("", "", beneath.FileID{}, nil, data)
	if len(lines) > 0 {
		lines[len(lines)-1].Seq = s.Seq()
	}
	return s, err
}
