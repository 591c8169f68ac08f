// Package streams gives the log to the receivers of scopefs.yaml: it starts a process for each, and again after it has died.
// A receiver or a process that hangs delays neither the daemon nor the log.
package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/dial"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/streams/wire"
)

// Host is what the streams have of the daemon.
type Host struct {
	Paths   config.Paths
	Version string
	Node    string // its name in a fleet; "": it is in none
	Logger  *slog.Logger
	Stderr  func(name string) io.Writer // of a stream's process
	Record  func(context.Context, audit.Event) error
	Fleet   driver.Handlers // what the process of config.FleetStream calls, too
}

// Set is the streams of one daemon.
type Set struct {
	host    Host
	all     []*stream
	cancel  context.CancelFunc
	working sync.WaitGroup
}

// Status says how far a stream is.
type Status struct {
	Name string
	Sent uint64        // the number of the last event that the receiver has; 0: not known yet
	Lag  uint64        // events of the log behind it
	Age  time.Duration // how long the oldest of them has waited
	Late bool          // an alarm was recorded
	Err  string        // why the last attempt failed; "": it did not
}

// Start starts the streams. They run until Close.
func Start(all []config.Stream, host Host) *Set {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Set{host: host, cancel: cancel}
	for _, one := range all {
		t := &stream{Stream: one, host: host, idle: time.Now(), gaps: make(chan string, maxGaps)}
		s.all = append(s.all, t)
		s.working.Go(func() { t.run(ctx) })
		s.working.Go(func() { t.watch(ctx) })
	}
	return s
}

// Close ends the processes. What a receiver does not have yet, it gets when the next daemon has started.
func (s *Set) Close() {
	s.cancel()
	s.working.Wait()
}

// Status returns how far the streams are. A nil Set has none.
func (s *Set) Status() []Status {
	all := []Status{}
	if s == nil { // not started yet
		return all
	}
	for _, t := range s.all {
		all = append(all, t.status(time.Now()))
	}
	return all
}

// The bounds of a stream.
const (
	beginTime  = 10 * time.Second
	firstPause = 250 * time.Millisecond // before a process that follows one
	lastPause  = 30 * time.Second
	longLife   = time.Minute // of a process, after which the next one starts at once
	recordTime = 10 * time.Second
	maxGaps    = 16          // that wait to be recorded, and that are recorded at once
	gapPause   = time.Minute // from one record of a gap to the next one, after maxGaps
	maxSaid    = 1 << 10     // bytes of a text of the process
)

// stream is one stream. One goroutine starts its processes, another one watches how far they come.
type stream struct {
	config.Stream
	host Host
	gaps chan string  // to be recorded
	more atomic.Int64 // gaps that there was no room for

	mu     sync.Mutex
	at     wire.Progress // the last report
	idle   time.Time     // without a process that has reported: since when; zero: there is one
	known  bool          // there was a report
	newest uint64        // of the log, when it was last looked at
	err    error         // why there is no process
	late   bool
	warned time.Time // when it was last recorded that the stream is late
}

// run starts a process, and another one when it has ended, until ctx ends.
func (t *stream) run(ctx context.Context) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		began := time.Now()
		err := t.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > longLife {
			pause = firstPause
		}
		t.ended(err)
		t.host.Logger.Warn("a stream's process has ended", "stream", t.Name, "err", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// once runs one process until it ends.
func (t *stream) once(ctx context.Context) error {
	binary, err := driver.OpenBinary(driver.Export, "")
	if err != nil {
		return err
	}
	dir := filepath.Join(t.host.Paths.State, "streams", t.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	grants := driver.Grants{Dial: t.dial, Secret: t.secret, Methods: driver.Handlers{}}
	wire.Report.Handle(grants.Methods, t.report)
	if t.Node != "" {
		maps.Copy(grants.Methods, t.host.Fleet)
	}
	p, err := binary.Start(nil, grants, t.host.Stderr(t.Name))
	if err != nil {
		return err
	}
	defer p.Close()
	begin, cancel := context.WithTimeout(ctx, beginTime)
	defer cancel()
	means, err := wire.Begin.Call(begin, p.Conn, wire.Settings{
		Log: t.host.Paths.Audit(), Dir: dir, Stream: t.Stream, Host: host, Version: t.host.Version, Node: t.host.Node,
	})
	if err == nil && len(means) == 0 {
		err = errors.New("it is not confined")
	}
	if errors.Is(err, driver.ErrLost) {
		return errEnded
	}
	if err != nil {
		p.Kill()
		return err
	}
	select {
	case <-p.Ended():
		return errEnded
	case <-ctx.Done():
		return nil
	}
}

var errEnded = errors.New("its process has ended: the daemon's log has its last words")

// dial connects to the receiver of the stream, whatever the process wants.
func (t *stream) dial(ctx context.Context, _ driver.Server) (net.Conn, error) {
	return Dial(ctx, t.Stream)
}

// Dial connects to the receiver of a stream, within 10 s. A Unix socket may be one of datagrams or a stream.
func Dial(ctx context.Context, s config.Stream) (net.Conn, error) {
	network, address := s.Address()
	conn, err := dial.Context(ctx, network, address)
	if network == "unixgram" && errors.Is(err, syscall.EPROTOTYPE) {
		conn, err = dial.Context(ctx, "unix", address)
	}
	return conn, err
}

func (t *stream) secret(ctx context.Context, _ string) (credential.Secret, error) {
	if t.Credential == nil {
		return credential.Secret{}, errors.New("the stream has no credential")
	}
	return t.Credential.Read(ctx)
}

// report takes a report of the process, which has parts of what the receiver answers. It does not block.
func (t *stream) report(_ context.Context, p wire.Progress) (driver.None, error) {
	p.Error, p.Gap = said(p.Error), said(p.Gap)
	if p.Gap != "" {
		select {
		case t.gaps <- p.Gap:
		default: // the log fails, or the process reports without end
			t.more.Add(1)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at, t.idle, t.err, t.known = p, time.Time{}, nil, true
	t.newest = max(t.newest, p.Sent)
	return driver.None{}, nil
}

// said returns the beginning of a text of the process, for a line of a terminal.
func said(text string) string { return printable.Text(text[:min(len(text), maxSaid)]) }

// ended notes that there is no process.
func (t *stream) ended(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = err
	if t.idle.IsZero() {
		t.idle = time.Now()
	}
}

func (t *stream) status(now time.Time) Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Status{Name: t.Name, Sent: t.at.Sent, Late: t.late, Err: t.at.Error}
	if t.err != nil {
		s.Err = t.err.Error()
	}
	switch {
	case !t.at.Oldest.IsZero():
		s.Age = max(now.Sub(t.at.Oldest), 0)
	case !t.idle.IsZero():
		s.Age = now.Sub(t.idle)
	}
	if s.Age > 0 && t.known && t.newest > s.Sent {
		s.Lag = t.newest - s.Sent
	}
	return s
}

// tick is the time between two looks at a stream.
const tick = 500 * time.Millisecond

// watch records when the stream is late, and what its receiver does not get.
func (t *stream) watch(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	// A receiver may refuse the record of a gap, too: without a pause each record would cause another one.
	room, refilled := maxGaps, time.Now()
	for {
		gaps := t.gaps
		if room == 0 {
			gaps = nil
		}
		select {
		case gap := <-gaps:
			room--
			if n := t.more.Swap(0); n > 0 {
				gap += fmt.Sprintf(" (and %d more reports)", n)
			}
			t.record(ctx, audit.OutcomeStreamGap, gap)
		case <-ticker.C:
			if now := time.Now(); now.Sub(refilled) >= gapPause {
				room, refilled = min(room+1, maxGaps), now
			}
			t.look(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// look records once that events have waited too long, and once that they wait no more. Each is an event, which the stream
// sends in its turn: they are as rare as Late says, or one a minute.
func (t *stream) look(ctx context.Context) {
	s := t.status(time.Now())
	if s.Age > tick { // the disk of the log may hang: then this stream's numbers stand still
		newest, err := audit.Last(t.host.Paths.Audit())
		if err == nil {
			t.mu.Lock()
			t.newest = newest
			t.mu.Unlock()
			s = t.status(time.Now())
		}
	}
	late := s.Age > t.Late
	if late == s.Late || late && time.Since(t.warned) < min(t.Late, time.Minute) {
		return
	}
	t.mu.Lock()
	t.late = late
	if late {
		t.warned = time.Now()
	}
	t.mu.Unlock()
	if late {
		t.record(ctx, audit.OutcomeStreamLate,
			fmt.Sprintf("the receiver lacks %d events, the oldest for %v: %s", s.Lag, s.Age.Round(time.Second), s.Err))
	} else {
		t.record(ctx, audit.OutcomeStreamBack, fmt.Sprintf("the receiver has the events up to %d", s.Sent))
	}
}

func (t *stream) record(ctx context.Context, outcome, detail string) {
	t.host.Logger.Warn("stream of the log", "stream", t.Name, "outcome", outcome, "detail", detail)
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	_ = t.host.Record(ctx, audit.Event{Event: audit.KindAudit, Outcome: outcome, Detail: t.Name + ": " + detail})
}
