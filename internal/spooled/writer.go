// Package spooled has events in a spool: a file to which a view appends the allowed operations that it records, one write(2)
// each, without waiting for the daemon. The daemon reads the file and appends the events to the log. What was written survives
// the death of both processes. The file is in memory (tmpfs), so that a write waits for no disk.
//
// Only Max bytes are written before the daemon has appended all and emptied the file. Denials and violations are not spooled:
// the daemon finds the program of each while the client waits.
package spooled

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/reconnect"
	"github.com/scopefs/scopefs/scope"
)

// Max limits the bytes of a spool, so that a slow log slows the view down. Alone limits those of a view without a
// daemon, which nobody empties until the next daemon has it.
const (
	Max   = 256 << 10
	Alone = 4 << 20
)

// maxEvent limits an event in a spool, in bytes.
const maxEvent = 20 << 10

const (
	drainDelay = 5 * time.Millisecond // how long an event waits, so that events reach the log in groups
	resetTime  = time.Second          // how old the oldest event becomes: a daemon that finds the file reads as much of the log
)

// Writer is the view's end of a spool.
type Writer struct {
	drain Drain
	dirty chan struct{} // holds a value if no drain was requested since the last event
	use   atomic.Bool   // the daemon's last answer permits it: the log works, and the agent is within its budget
	alone atomic.Bool   // there is no daemon
	late  atomic.Bool   // no daemon has emptied the file since there was none

	mu       sync.Mutex // held to write an event to memory, never while the daemon drains
	out      *peer.Writer
	size     int       // bytes since the last reset
	last     time.Time // of the last event
	emptying bool      // the daemon is to empty the file: no event is written until it answers
	broken   bool      // not used any more: see Record and empty
}

// A Drain function has the daemon append the spool's events to the log; with reset, it then
// empties the file. use is whether the view may go on. If the daemon has not answered, it
// may do so later. [reconnect.ErrNoDaemon] reports that none is there: events may go on to the spool.
type Drain func(reset bool) (use, answered bool, err error)

// New returns a Writer of a file. It is not used before Use.
func New(w io.Writer, drain Drain) *Writer {
	return &Writer{drain: drain, dirty: make(chan struct{}, 1), out: peer.NewWriter(w, maxEvent, 0)}
}

// most returns how many bytes are written before the file is emptied. The next daemon first appends what it finds: meanwhile
// clients do not wait for that.
func (s *Writer) most() int {
	if s.alone.Load() || s.late.Load() {
		return Alone
	}
	return Max
}

// SetAlone notes that there is no daemon, or that the next one is there.
func (s *Writer) SetAlone(alone bool) {
	if s == nil {
		return
	}
	s.alone.Store(alone)
	if alone {
		s.late.Store(true)
		return
	}
	select {
	case s.dirty <- struct{}{}: // events of the time between
	default:
	}
}

// Use notes whether the daemon permits the use of the spool. Of a nil Writer it does nothing.
func (s *Writer) Use(may bool) {
	if s != nil {
		s.use.Store(may)
	}
}

// Record appends an event. It returns false if the event must go to the daemon.
func (s *Writer) Record(e event.Event) (recorded bool, err error) {
	if s == nil || e.Verdict != event.Allow || e.UID == nil || !s.use.Load() {
		return false, nil
	}
	if s.mayEmpty(s.most()) {
		if err := s.empty(); err != nil && !errors.Is(err, reconnect.ErrNoDaemon) {
			return false, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken || s.emptying || s.size >= s.most() || !s.use.Load() { // since we hold mu
		return false, nil
	}
	// Different times identify the events of an agent.
	s.last = later(time.Now(), s.last)
	n, err := write(s.out, e, s.last)
	if err != nil { // a part of the event may be at the end
		s.broken = true
		return false, nil
	}
	s.size += n
	select {
	case s.dirty <- struct{}{}:
	default:
	}
	return true, nil
}

// mayEmpty reports whether the caller is to call empty: the spool has least bytes, and nobody empties it.
func (s *Writer) mayEmpty(least int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken || s.emptying || s.size < least {
		return false
	}
	s.emptying = true
	return true
}

// empty has the daemon append all events and empty the file. Events go to the daemon meanwhile. A daemon that has not
// answered may still empty the file, which ends its use.
func (s *Writer) empty() error {
	use, answered, err := s.drain(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.emptying = false
	if !errors.Is(err, reconnect.ErrNoDaemon) {
		s.use.Store(use && err == nil)
	}
	s.broken = s.broken || !answered
	if err == nil {
		s.size = 0
		s.late.Store(false)
	}
	return err
}

// Run has the daemon append events soon after they were written, until ctx ends.
func (s *Writer) Run(ctx context.Context) {
	for {
		select {
		case <-s.dirty:
		case <-ctx.Done():
			return
		}
		for end := time.After(resetTime); end != nil; {
			time.Sleep(drainDelay)
			if use, _, err := s.drain(false); !errors.Is(err, reconnect.ErrNoDaemon) && (err != nil || !use) {
				s.use.Store(false)
			}
			select {
			case <-s.dirty:
			case <-end:
				end = nil
			}
		}
		if s.mayEmpty(1) {
			_ = s.empty() // the next event finds that it may not use the spool
		}
	}
}

// later returns now, or the first time after last if that is later.
func later(now, last time.Time) time.Time {
	if now = now.Round(0); now.After(last) {
		return now
	}
	return last.Add(1)
}

// write writes an event with one write(2), and returns its size.
func write(w *peer.Writer, e event.Event, decided time.Time) (int, error) {
	var head [headSize]byte
	binary.LittleEndian.PutUint64(head[:], uint64(decided.UnixNano()))
	binary.LittleEndian.PutUint32(head[8:], uint32(e.PID))
	binary.LittleEndian.PutUint32(head[12:], *e.UID)
	all := [parts][]byte{head[:], []byte(e.Op), []byte(e.Rule), []byte(e.RuleKind), Cut(e.Path)}
	size := parts * 4
	for _, p := range all {
		size += len(p)
	}
	return size, w.Write(all[:]...)
}

const (
	headSize = 8 + 4 + 4 // the time in nanoseconds, the process, the user
	parts    = 5         // the head, the operation, the rule, its kind, the path
)

// Read decodes the events of a spool, up to the last whole one, and returns the size
// of what it has decoded. A view that an agent has compromised may write anything: the
// events have the fields of an allowed file operation, and the error is that of a spool
// which no view wrote.
func Read(text []byte) (events []event.Event, size int, err error) {
	in := peer.NewReader(bytes.NewReader(text), maxEvent)
	for {
		var head, op, rule, kind, path []byte
		err := in.Read(&head, &op, &rule, &kind, &path)
		switch {
		case err == io.EOF, errors.Is(err, io.ErrUnexpectedEOF):
			return events, size, nil
		case err != nil:
			return events, size, err
		case len(head) != headSize:
			return events, size, fmt.Errorf("the head of an event has %d bytes", len(head))
		}
		if _, err := scope.ParseOp(string(op)); err != nil {
			return events, size, err
		}
		uid := binary.LittleEndian.Uint32(head[12:])
		events = append(events, event.Event{
			Event: event.KindFile, Verdict: event.Allow, Op: string(op), Rule: string(rule), RuleKind: string(kind), Path: string(path),
			Decided: time.Unix(0, int64(binary.LittleEndian.Uint64(head[:]))), PID: int(binary.LittleEndian.Uint32(head[8:])), UID: &uid,
		})
		size += 4*parts + len(head) + len(op) + len(rule) + len(kind) + len(path)
	}
}

// Cut returns the two ends of a long string, more than the log keeps. The length of a path must not decide whether an event can
// be recorded.
func Cut(s string) []byte {
	const end = 8 << 10
	if len(s) <= 2*end {
		return []byte(s)
	}
	return []byte(s[:end] + "..." + s[len(s)-end:])
}
