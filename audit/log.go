package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// Options are the settings of a log; the zero value is a good one.
type Options struct {
	SegmentBytes int64         // when a new segment is begun; default 64 MiB. A group of lines is never split
	Sync         time.Duration // how often fsync(2) is called when there is something to sync; default 1s
	Retry        time.Duration // how often a failing log is tried again; default 1s
	SegmentAge   time.Duration // when a new segment is begun at the latest; default 24h

	// Complete segments are compressed. They are removed when their last event is older than KeepAge, or, the oldest
	// first, while all together are larger than KeepBytes; 0 keeps them.
	KeepAge   time.Duration
	KeepBytes int64

	// Timeout is how long an append may take in a log of [Start]; default 5s.
	Timeout time.Duration

	// Notice is called with each event that the log records about itself. It must not append.
	Notice func(Event) `json:"-"`
}

func (o Options) complete() Options {
	o.SegmentBytes = cmp.Or(o.SegmentBytes, 64<<20)
	o.Sync = cmp.Or(o.Sync, time.Second)
	o.Retry = cmp.Or(o.Retry, time.Second)
	o.SegmentAge = cmp.Or(o.SegmentAge, 24*time.Hour)
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	return o
}

// Log is the writing end of a log. Its methods may be called by many goroutines, and several processes of one host may
// have the same directory open.
type Log struct {
	opts Options

	turn chan struct{} // held by who writes: whoever gets it writes everything queued
	disk disk          // used by the holder of the turn
	buf  []byte        // the last group, kept for its room

	mu       sync.Mutex
	queue    []*entry
	closed   bool
	err      error  // why the log fails
	full     error  // only the reserve of the disk is left
	wasFull  error  // that it was has not been recorded
	refused  uint64 // events that got an error since it does; changed by the holder of the turn
	onChange func(error)

	changed chan struct{} // wakes run: err or onChange is another
	hurry   chan struct{} // closed by Hurry
	stop    chan struct{}
	stopped chan struct{}
}

// disk is where a log is: a store, or one in another process.
type disk interface {
	// append appends bodies, one a line, and returns the number of the first.
	append(bodies []byte) (first uint64, err error)
	close() error
}

// An entry is an event on its way to the disk.
type entry struct {
	body []byte
	done chan struct{} // closed when seq and err are set
	seq  uint64
	err  error
}

// Open opens the log in dir for appending, and makes dir (0700) when it is missing. What it finds damaged or missing it
// records; it fails when that cannot be written. The caller closes the log.
func Open(dir string, opts Options) (*Log, error) {
	opts = opts.complete()
	l := newLog(opts)
	store, err := openStore(dir, opts, l.hear)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	l.disk = store
	go l.run()
	return l, nil
}

func newLog(opts Options) *Log {
	return &Log{
		opts:    opts,
		turn:    make(chan struct{}, 1),
		changed: make(chan struct{}, 1),
		hurry:   make(chan struct{}),
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
	}
}

// hear takes what the disk reports on its own.
func (l *Log) hear(r report) {
	if r.Err != "" {
		l.settle(errors.New(r.Err), 0)
	}
	if r.Full != nil {
		l.setFull(*r.Full)
	}
	if r.Event != nil && l.opts.Notice != nil {
		l.opts.Notice(*r.Event)
	}
}

// Record is Append for callers that need no sequence number.
func (l *Log) Record(ctx context.Context, e Event) error {
	_, err := l.Append(ctx, e)
	return err
}

// Append records e and returns its sequence number once the line has been handed to the kernel; it does not wait for
// the disk. On an error the event is not in the log, except that it may be when ctx ended while another caller was writing
// it, or when the disk refused the write and the cut that takes it back. Ctx is heeded while others write, not while this
// call does. After Close the error is [os.ErrClosed].
func (l *Log) Append(ctx context.Context, e Event) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("append to log: %w", err)
	}
	if err := l.refuse(e); err != nil {
		return 0, fmt.Errorf("append to log: %w", err)
	}
	w := &entry{body: appendBody(make([]byte, 0, 256), clean(e)), done: make(chan struct{})}
	l.mu.Lock()
	l.queue = append(l.queue, w)
	l.mu.Unlock()
	select {
	case l.turn <- struct{}{}:
		l.flush(false)
		<-l.turn
	case <-w.done:
	case <-ctx.Done():
		l.withdraw(w)
		return 0, fmt.Errorf("append to log: %w", ctx.Err())
	}
	<-w.done // no wait: who had the turn before us, or we, took the queue that held w
	if w.err != nil {
		return 0, w.err
	}
	return w.seq, nil
}

// withdraw takes w back when nobody is writing it yet.
func (l *Log) withdraw(w *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = slices.DeleteFunc(l.queue, func(q *entry) bool { return q == w })
}

// flush writes what is queued as one group, or refuses it while the log fails and this is no retry. The caller has the
// turn.
func (l *Log) flush(retry bool) {
	l.mu.Lock()
	group, err, closed := l.queue, l.err, l.closed
	l.queue = nil
	l.mu.Unlock()
	switch {
	case len(group) == 0 && !retry:
		return
	case closed:
		err = fmt.Errorf("append to log: %w", os.ErrClosed)
	case err == nil || retry:
		err = l.write(group)
		l.settle(err, len(group))
	default:
		l.settle(err, len(group))
	}
	for _, w := range group {
		w.err = err
		close(w.done)
	}
}

// write writes one group, after what the log has to say about its failure, and sets the sequence numbers. The caller has
// the turn.
func (l *Log) write(group []*entry) error {
	bodies := l.buf[:0]
	refused, why := l.failure()
	if why != nil {
		e := Event{Event: KindAudit, Outcome: OutcomeRecovered, Detail: fmt.Sprintf("%d events refused: %v", refused, why)}
		bodies = appendBody(bodies, clean(e))
	}
	for _, w := range group {
		bodies = append(bodies, w.body...)
	}
	l.buf = bodies
	seq, err := l.disk.append(bodies)
	if err != nil {
		return fmt.Errorf("append to log: %w", err)
	}
	if why != nil {
		l.recovered(refused)
		seq++
	}
	for _, w := range group {
		w.seq = seq
		seq++
	}
	return nil
}

// Hurry says that the log is about to be closed: from now on an append to a log of [Start] may take no longer than 2.5
// seconds.
func (l *Log) Hurry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.hurry:
	default:
		close(l.hurry)
	}
}

// Close syncs and closes the log. What is queued or comes later gets [os.ErrClosed]. It must not be called from the
// function given to OnChange.
func (l *Log) Close() error {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	l.mu.Unlock()
	if closed {
		return nil
	}
	l.Hurry()
	close(l.stop)
	<-l.stopped
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if err := l.disk.close(); err != nil {
		return fmt.Errorf("close log: %w", err)
	}
	return nil
}
