package history

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/scopefs/scopefs/fs/history/journal"
)

// points are the checkpoints of a history, and the time before which generations were given up. The log has
// Headers.
type points struct {
	mu      sync.Mutex // guards what follows
	log     *journal.Log
	all     []generationRecords // the checkpoints, without records
	horizon uint64              // the last record that was given up; 0: none was
}

// open reads the file. It drops the checkpoints before the horizon.
func (p *points) open(s *Store) (err error) {
	p.log, err = journal.OpenLog(s.top, "checkpoints", journal.Frames, true, func(entry []byte) bool {
		var h Header
		r, err := new(journal.Coder).Decode(entry)
		if err != nil || json.Unmarshal(r.Data, &h) != nil {
			return false
		}
		p.add(r.Seq, h)
		s.last.Store(max(s.last.Load(), r.Seq))
		return true
	})
	if err != nil {
		return err
	}
	return p.rewrite()
}

// rewrite writes the file again, without checkpoints before the horizon and those that were dropped. The caller holds mu, or
// is open.
func (p *points) rewrite() (err error) {
	known := p.all
	p.all = nil
	if err := p.log.Clear(); err != nil {
		return err
	}
	for _, g := range known {
		if g.began > p.horizon {
			err = p.append(g.began, g.Header)
		}
		if err != nil {
			return err
		}
	}
	if p.horizon > 0 {
		err = p.append(p.horizon, Header{GivenUp: true})
	}
	return err
}

func (p *points) add(seq uint64, h Header) {
	if h.GivenUp {
		p.horizon = max(p.horizon, seq)
		return
	}
	if h.Parent != "" {
		p.drop(h.Parent)
	}
	p.all = append(p.all, generationRecords{past: past{began: seq, ended: true}, Header: h})
}

// The bounds of checkpoints that clients have made. Beyond them the oldest is dropped.
const (
	maxPoints     = 1000    // of all clients
	maxOwnPoints  = 100     // of one
	maxPointsFile = 1 << 20 // bytes of the file before it is written again
)

// drop makes room for a checkpoint of a client.
func (p *points) drop(client string) {
	var theirs, own []int
	for i, g := range p.all {
		if g.Parent != "" {
			theirs = append(theirs, i)
		}
		if g.Parent == client {
			own = append(own, i)
		}
	}
	if len(own) >= maxOwnPoints {
		p.all = slices.Delete(p.all, own[0], own[0]+1)
	} else if len(theirs) >= maxPoints {
		p.all = slices.Delete(p.all, theirs[0], theirs[0]+1)
	}
}

// append adds a point to the file. The caller holds mu, or is open.
func (p *points) append(seq uint64, h Header) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := p.log.Append((&journal.Record{Seq: seq, Kind: journal.Begins, Data: text}).Text()); err != nil {
		return err
	}
	p.add(seq, h)
	return nil
}

// list returns the checkpoints, and the horizon.
func (p *points) list() (all []generationRecords, horizon uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]generationRecords(nil), p.all...), p.horizon
}

// giveUp notes that a record is given up, and all before it.
func (p *points) giveUp(seq uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.append(seq, Header{GivenUp: true})
}

// CheckName returns an error for a text that cannot name a checkpoint.
func CheckName(name string) error {
	if len(name) > maxName || strings.ContainsAny(name, "@/") || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("checkpoint %q: want at most %d bytes, without @, / and control characters", name, maxName)
	}
	return nil
}

// maxName bounds the name of a checkpoint, in bytes.
const maxName = 100

// Checkpoint ends every open generation, and notes a name for this time. It returns the checkpoint's id. client is the
// session of the client that makes it, "" for the operator: a name means a checkpoint of the same one.
func (s *Store) Checkpoint(name, client string, hooks Hooks) (id string, err error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	if hooks.Begin != nil {
		defer hooks.Begin()
	}
	s.points.mu.Lock()
	s.mu.Lock()
	seq := s.next()
	ended := s.open
	s.open = map[Label]*generation{}
	for _, g := range ended {
		g.retire()
	}
	s.finishing.Go(func() {
		for _, g := range ended {
			g.end()
		}
	})
	s.mu.Unlock()
	if s.points.log.Size() > maxPointsFile {
		err = s.points.rewrite()
	}
	if err == nil {
		err = s.points.append(seq, Header{Label: Label{Parent: client}, Checkpoint: name})
	}
	s.points.mu.Unlock()
	return idOf(seq), err
}
