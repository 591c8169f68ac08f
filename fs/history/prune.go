package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/scopefs/scopefs/fs/history/journal"
)

const (
	pruneBytes = 64 << 20 // that are kept between two looks at the bounds
	freeShare  = 0.03     // of a file system that the history leaves free
	nearlyFull = 0.9      // of the bound
)

// prune gives up the oldest generations while the history is over its bounds. With full it gives up one at least, with firm it spares none.
func (s *Store) prune(full, firm bool) {
	if !s.turn.TryLock() { // an undo needs them
		return
	}
	defer s.turn.Unlock()
	all, err := s.generations()
	if err != nil {
		s.opt.Logger.Error("history: prune", "err", err)
		return
	}
	total := int64(0)
	for _, p := range all {
		total += p.bytes
	}
	s.mu.Lock()
	s.since = 0
	for _, g := range s.open {
		g.mu.Lock()
		total += g.bytes + g.log.Size()
		g.mu.Unlock()
	}
	s.mu.Unlock()
	count, reason := 0, ""
	for _, p := range all {
		why, old := s.excess(p, total)
		if full && why == "" && count == 0 {
			why = whyFull
		}
		if why == "" || !firm && !old && s.spares(all, p, total) {
			break
		}
		if !p.ended {
			s.endAll(func(g *generation) bool { return g.began == p.began })
			break // the next prune finds it ended
		}
		if err := s.giveUp(p); err != nil {
			s.opt.Logger.Error("history: prune", "err", err)
			break
		}
		total -= p.bytes
		count, reason = count+1, why
	}
	size, of := s.bound()
	fills := size > 0 && float64(total) > size*nearlyFull
	if s.opt.Dropped != nil && (count > 0 || fills && !s.fills) {
		s.opt.Dropped(count, cmp.Or(reason, fmt.Sprintf("more than %g %% of %s: the oldest generations go next", nearlyFull*100, of)))
	}
	s.fills = fills
}

// spares reports whether a generation stays all the same: the last but undos, and its session's while all take twice the bound at most.
func (s *Store) spares(all []past, p past, total int64) bool {
	size, _ := s.bound()
	for i := len(all) - 1; i >= 0; i-- {
		if last, err := s.outline(all[i]); err == nil && last.some && last.Undo == nil {
			g, err := s.outline(p)
			owner := cmp.Or(g.Parent, g.Session)
			return p.began >= last.began || err == nil && owner != "" && owner == cmp.Or(last.Parent, last.Session) && float64(total) <= 2*size
		}
	}
	return false
}

const whyFull = "the file system is full"

// excess returns why the oldest generation must go; "" if it may stay.
func (s *Store) excess(p past, total int64) (why string, old bool) {
	if s.opt.Age > 0 && time.Since(timeOf(p.began)) > s.opt.Age {
		return fmt.Sprintf("older than %v", s.opt.Age), true
	}
	if size, of := s.bound(); size > 0 && float64(total) > size {
		return "more than " + of, false
	}
	f := s.top.Self()
	st, err := f.StatFS()
	if err == nil && st.Blocks > 0 && (float64(st.Bavail) < float64(st.Blocks)*freeShare || s.opt.Quota.Full()) && p.bytes > 0 {
		return whyFull, false
	}
	return "", false
}

// bound returns how many bytes the history may use, and what that is; 0: there is no bound.
func (s *Store) bound() (size float64, of string) {
	if s.opt.Size > 0 {
		size, of = float64(s.opt.Size), fmt.Sprintf("%d bytes", s.opt.Size)
	}
	f := s.top.Self()
	if st, err := f.StatFS(); err == nil && s.opt.Percent > 0 {
		part := float64(st.Blocks) * float64(st.Bsize) * s.opt.Percent / 100
		if part > 0 && (size == 0 || part < size) {
			size, of = part, fmt.Sprintf("%g %% of the file system", s.opt.Percent)
		}
	}
	return size, of
}

// remove removes a generation.
func (s *Store) remove(name string) error {
	names, err := s.dir.Names(name)
	if err != nil {
		return err
	}
	d, err := s.dir.Dir(name)
	if err != nil {
		return err
	}
	defer d.Close()
	names = append(slices.DeleteFunc(names, func(kept string) bool { return kept == journal.Name }), journal.Name)
	for _, kept := range names {
		if err := s.links.drop(d, kept); err != nil && kept != journal.Name {
			return err
		}
	}
	if st, err := s.top.Stat(name); err == nil {
		defer s.opt.Quota.Freed(&st)
	}
	return s.top.Rmdir(name)
}

// giveUp removes a generation, and notes its last record as the horizon.
func (s *Store) giveUp(p past) error {
	last := p.began
	if g, err := s.load(p); err == nil && len(g.records) > 0 {
		last = g.records[len(g.records)-1].Seq
	}
	early := s.points.giveUp(last)
	if err := s.remove(p.name); err != nil || early == nil {
		return err
	}
	return s.points.giveUp(last) // there is room now
}

// loss is a change that the history had no room for.
type loss struct {
	label    Label
	rel, why string
}

// maxLost bounds the changes that are listed by path while the file system is full. After them one stands for all.
const maxLost = 1000

// crowded makes the oldest generations go.
func (s *Store) crowded() {
	s.cramped.Store(true)
	s.stir()
}

// lose notes that a change is not kept. It reaches a journal when there is room again.
func (s *Store) lose(l loss) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.lost) == maxLost {
		l.rel = "" // the whole scope
	}
	if len(s.lost) <= maxLost {
		s.lost = append(s.lost, l)
	}
	s.stir()
}

// listLost writes the losses to journals.
func (s *Store) listLost() {
	s.mu.Lock()
	lost := s.lost
	s.lost = nil
	s.mu.Unlock()
	for i, l := range lost {
		g, err := s.generation(l.label)
		if err == nil {
			err = g.write(&journal.Record{Seq: s.next(), Kind: journal.Lost, Path: l.rel, Why: l.why})
			g.users.Done()
		}
		if err != nil { // later
			s.mu.Lock()
			s.lost = append(lost[i:], s.lost...)
			s.mu.Unlock()
			s.stir()
			return
		}
	}
}
