package history

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
)

const (
	pruneBytes = 64 << 20 // that are kept at most between two looks at the bounds
	freeShare  = 0.03     // of a file system that the history leaves free
	nearlyFull = 0.9      // of the bound
	limitShare = 0.25     // of what an agent may use, for its history: its last session may have twice that
)

// prune gives up the oldest generations while the history is over its bounds. With full it gives up one at least. Before it gives up others
// than old ones for the first time, it says so.
func (s *Store) prune(full bool) {
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
	size, _ := s.bound()
	s.mu.Lock()
	s.since, s.often = 0, pruneBytes
	if size > 0 {
		s.often = min(s.often, int64(size/8))
	}
	for _, g := range s.open {
		g.mu.Lock()
		total += g.bytes + g.log.Size()
		g.mu.Unlock()
	}
	s.mu.Unlock()
	said := s.says(total, full)
	count, reason := 0, ""
	for _, p := range all {
		why, old := s.excess(p, total)
		if full && why == "" && count == 0 {
			why = whyFull
		}
		if why == "" || !old && (!said || s.spares(all, p, total)) {
			break
		}
		if !p.ended {
			s.endAll(func(g *generation) bool { return g.began == p.began })
			s.mu.Lock()
			s.since = s.often + 1 // the next prune finds it ended
			s.mu.Unlock()
			s.stir()
			break
		}
		if err := s.giveUp(p); err != nil {
			s.opt.Logger.Error("history: prune", "err", err)
			break
		}
		total -= p.bytes
		count, reason = count+1, why
	}
	if count > 0 && s.opt.Dropped != nil {
		s.opt.Dropped(count, reason)
	}
}

// saidName is a file that is there as long as Options.Dropped knows that the oldest generations go next.
const saidName = "nearly-full"

// says reports whether Options.Dropped knew that before, and says it if that is so by now.
func (s *Store) says(total int64, full bool) (said bool) {
	why := ""
	if size, of := s.bound(); size > 0 && float64(total) > size*nearlyFull {
		why = fmt.Sprintf("more than %g %% of %s", nearlyFull*100, of)
	} else if full {
		why = whyFull
	} else if s.scarce(2 * freeShare) {
		why = fmt.Sprintf("less than %g %% of the file system is free", 2*freeShare*100)
	}
	said = s.said
	if s.said = why != ""; s.said == said {
		return said
	}
	if !s.said {
		_ = s.top.Unlink(saidName) // else the next process does not say it again
		return said
	}
	if f, err := journal.OpenOrCreate(s.top, saidName); err == nil { // else it does
		f.Close()
	}
	if s.opt.Dropped != nil {
		s.opt.Dropped(0, why+": the oldest generations go next")
	}
	return said
}

// scarce reports whether less than a share of the file system is free.
func (s *Store) scarce(share float64) bool {
	f := s.top.Self()
	st, err := f.StatFS()
	return err == nil && st.Blocks > 0 && float64(st.Bavail) < float64(st.Blocks)*share
}

// spares reports whether a generation stays all the same: the last but undos, and its session's while all take twice the bound at most.
// With a limit of the agent that holds for the last, too: the agent could do nothing more.
func (s *Store) spares(all []past, p past, total int64) bool {
	size, _ := s.bound()
	within := size == 0 || float64(total) <= 2*size
	bytes, files := s.opt.Quota.Limits()
	if !within && bytes+files > 0 {
		return false
	}
	for i := len(all) - 1; i >= 0; i-- {
		if last, err := s.outline(all[i]); err == nil && last.some && last.Undo == nil {
			g, err := s.outline(p)
			owner := cmp.Or(g.Parent, g.Session)
			return p.began >= last.began || err == nil && owner != "" && owner == cmp.Or(last.Parent, last.Session) && within
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
	if p.bytes > 0 && s.scarce(freeShare) {
		return whyFull, false
	}
	return "", false
}

// bound returns how many bytes the history may use, and what that is; 0: there is no bound.
func (s *Store) bound() (size float64, of string) {
	if s.opt.Size > 0 {
		size, of = float64(s.opt.Size), fmt.Sprintf("%d bytes", s.opt.Size)
	}
	less := func(part float64, what string) {
		if part > 0 && (size == 0 || part < size) {
			size, of = part, what
		}
	}
	f := s.top.Self()
	if st, err := f.StatFS(); err == nil {
		less(float64(st.Blocks)*float64(st.Bsize)*s.opt.Percent/100, fmt.Sprintf("%g %% of the file system", s.opt.Percent))
	}
	bytes, files := s.opt.Quota.Limits()
	less(float64(bytes)*limitShare, "a quarter of limits: {disk}")
	less(float64(files)*keptCost*limitShare, "a quarter of limits: {files}")
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

// crowded makes the oldest generations go after an error of the file system. A limit of the agent costs none: the agent can reach it.
func (s *Store) crowded(err error) {
	if !errors.Is(err, unix.ENOSPC) {
		return
	}
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
