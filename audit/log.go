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

// Options are the settings of a log. The zero value selects the defaults.
type Options struct {
	SegmentBytes int64         // size limit of a segment; default 64 MiB. A group of lines is never split
	Sync         time.Duration // interval of fsync(2) while there are unsynced events; default 1s
	Retry        time.Duration // interval between retries of a failing log; default 1s
	SegmentAge   time.Duration // age limit of the segment being written; default 24h

	// The log compresses complete segments. It removes a segment when its last event is older than KeepAge. While the
	// log is larger than KeepBytes, it removes the oldest segment. 0 means no limit.
	KeepAge   time.Duration
	KeepBytes int64

	// ChannelDay limits the bytes that the channels of one agent write in each day, and twice as many at once. The log refuses more:
	// see [OutcomeRefused]. 0 means no limit.
	ChannelDay int64

	Timeout   time.Duration // limits an append to a log of [Start]; default 5s
	Continued []string      // ids of calls of earlier processes that have not ended with them

	// Notice is called with each event that the log records about itself. It must not call Append.
	Notice func(Event) `json:"-"`

	// UID returns what the log has for the user of an event; nil: the user itself. It must not block.
	UID func(uint32) uint32 `json:"-"`

	// Recorded is called with each event that Append and AppendAll have recorded. It must not block.
	Recorded func(Event) `json:"-"`
}

func (o Options) complete() Options {
	o.SegmentBytes = cmp.Or(o.SegmentBytes, 64<<20)
	o.Sync = cmp.Or(o.Sync, time.Second)
	o.Retry = cmp.Or(o.Retry, time.Second)
	o.SegmentAge = cmp.Or(o.SegmentAge, 24*time.Hour)
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	return o
}

// Log appends to a log. Its methods are safe for concurrent use. Several processes of one host may open the same
// directory.
type Log struct {
	opts Options
	disk disk
	own  lane // of the events that Append gets; see Channel for the others

	mu       sync.Mutex
	closed   bool
	err      error  // the last failure; nil while the log works
	full     error  // not nil while only the reserve of the disk is left
	wasFull  error  // like full, until OutcomeRecovered is recorded
	refused  uint64 // events refused since the failure
	onChange func(error)

	changed chan struct{} // wakes run: err, full or onChange changed
	hurry   chan struct{} // closed by Hurry
	stop    chan struct{}
	stopped chan struct{}
}

// lane is a queue of events, and their way to the disk.
type lane struct {
	max   int           // bytes of a group
	turn  chan struct{} // a semaphore: its holder writes everything queued
	to    appender      // used only by the holder of turn
	buf   []byte        // the last group; reused
	queue []*entry      // guarded by Log.mu
}

// appender takes events to the disk.
type appender interface {
	// append appends bodies, one a line, and returns the sequence number of the first.
	append(bodies []byte) (first uint64, err error)
}

// disk stores a log: in this process (store) or in another process (remote).
type disk interface {
	appender
	channel(agent string) appender // of one agent's events
	close() error
}

// An entry is what one call appends, in the queue.
type entry struct {
	body []byte        // its lines
	n    uint64        // how many
	keep bool          // the caller keeps the events if they are not written: none is refused
	done chan struct{} // closed when seq and err are set
	seq  uint64
	err  error
}

// Open opens the log in dir for appending. It creates dir (mode 0700) if it does not exist. It records damaged or
// missing parts of the log as events, and returns an error if it cannot write them. The caller must close the log.
func Open(dir string, opts Options) (*Log, error) {
	opts = opts.complete()
	l := newLog(opts)
	store, err := openStore(dir, opts, l.handleReport)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	l.disk, l.own.to = store, store
	go l.run()
	return l, nil
}

func newLog(opts Options) *Log {
	return &Log{
		opts:    opts,
		own:     lane{max: maxGroup, turn: make(chan struct{}, 1)},
		changed: make(chan struct{}, 1),
		hurry:   make(chan struct{}),
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
	}
}

// handleReport handles a report of the disk.
func (l *Log) handleReport(r report) {
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

// Record is Append without the sequence number.
func (l *Log) Record(ctx context.Context, e Event) error {
	_, err := l.Append(ctx, e)
	return err
}

// Append records e and returns its sequence number once the line is in the kernel's page cache. It does not wait for
// the disk. If it returns an error, the event is not in the log, except in four cases: ctx ended while another
// goroutine was writing the event; both the write and the truncation after it failed; and, in a log of [Start], the
// write timed out ([ErrTimeout]) or the other process ended before it answered. ctx limits the wait for other writers,
// not the write itself. After Close the error is [os.ErrClosed].
func (l *Log) Append(ctx context.Context, e Event) (uint64, error) { return l.append(ctx, &l.own, e) }

func (l *Log) append(ctx context.Context, by *lane, e Event) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("append to log: %w", err)
	}
	if err := l.refuse(e); err != nil {
		return 0, fmt.Errorf("append to log: %w", err)
	}
	w := &entry{body: appendBody(make([]byte, 0, 256), l.clean(e)), n: 1, done: make(chan struct{})}
	if err := l.enter(ctx, by, w); err != nil {
		return 0, err
	}
	l.recorded(e)
	return w.seq, nil
}

// AppendAll records events in this order, with no others between them. Their effects have happened, and the caller
// keeps the events until AppendAll has returned nil. So it also uses the reserve of a full disk. After an error none,
// some or all events may be in the log: a process that dies may have written a part.
func (l *Log) AppendAll(events []Event) error {
	if len(events) == 0 {
		return nil
	}
	w := &entry{n: uint64(len(events)), keep: true, done: make(chan struct{})}
	for _, e := range events {
		w.body = appendBody(w.body, l.clean(e))
	}
	if err := l.enter(context.Background(), &l.own, w); err != nil {
		return err
	}
	l.recorded(events...)
	return nil
}

// clean is the function clean, with the user of [Options.UID].
func (l *Log) clean(e Event) Event {
	if e.UID != nil && l.opts.UID != nil {
		uid := l.opts.UID(*e.UID)
		e.UID = &uid
	}
	return clean(e)
}

func (l *Log) recorded(events ...Event) {
	for _, e := range events {
		if l.opts.Recorded != nil {
			l.opts.Recorded(e)
		}
	}
}

// enter queues w and returns when it is written or ctx ends.
func (l *Log) enter(ctx context.Context, by *lane, w *entry) error {
	l.mu.Lock()
	by.queue = append(by.queue, w)
	l.mu.Unlock()
	select {
	case by.turn <- struct{}{}:
		l.flush(by, false)
		<-by.turn
	case <-w.done:
	case <-ctx.Done():
		l.withdraw(by, w)
		return fmt.Errorf("append to log: %w", ctx.Err())
	}
	<-w.done // already closed: the goroutine that held turn has written w
	return w.err
}

// withdraw removes w from the queue, unless another goroutine is writing it.
func (l *Log) withdraw(by *lane, w *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	by.queue = slices.DeleteFunc(by.queue, func(q *entry) bool { return q == w })
}

// flush writes the queue, a group after another. While the log fails it returns the error to the callers instead, except
// with retry. The caller holds the lane's turn.
func (l *Log) flush(by *lane, retry bool) {
	l.mu.Lock()
	all, err, closed := by.queue, l.err, l.closed
	by.queue = nil
	l.mu.Unlock()
	for first := true; len(all) > 0 || first && retry; first = false {
		var group []*entry
		group, all = by.group(all)
		switch {
		case closed:
			err = fmt.Errorf("append to log: %w", os.ErrClosed)
		case err == nil || retry && first:
			if err = l.write(by, group); errors.Is(err, ErrRefused) {
				finish(group, err)
				err = nil // the log works
				continue
			}
			if err != nil || by == &l.own { // only retry knows that the log works again
				l.settle(err, refusable(group))
			}
		default:
			l.settle(err, refusable(group))
		}
		finish(group, err)
	}
}

// finish answers those who wait for a group.
func finish(group []*entry, err error) {
	for _, w := range group {
		w.err = err
		close(w.done)
	}
}

// group returns the entries that the lane takes at once, one at least, and the others.
func (by *lane) group(all []*entry) (group, others []*entry) {
	size := 0
	for i, w := range all {
		if size += len(w.body); i > 0 && size > by.max {
			return all[:i], all[i:]
		}
	}
	return all, nil
}

// refusable returns how many events of a group are refused if it is not written.
func refusable(group []*entry) (n int) {
	for _, w := range group {
		if !w.keep {
			n++
		}
	}
	return n
}

// write writes one group and sets the sequence numbers. After a failure it first writes OutcomeRecovered, which no channel
// may. The caller holds the lane's turn.
func (l *Log) write(by *lane, group []*entry) error {
	bodies := by.buf[:0]
	refused, why := l.failure()
	if by != &l.own {
		why = nil
	}
	if why != nil {
		e := Event{Event: KindAudit, Outcome: OutcomeRecovered, Detail: fmt.Sprintf("%d events refused: %v", refused, why)}
		bodies = appendBody(bodies, clean(e))
	}
	for _, w := range group {
		bodies = append(bodies, w.body...)
	}
	by.buf = bodies
	seq, err := by.to.append(bodies)
	if err != nil {
		return fmt.Errorf("append to log: %w", err)
	}
	if why != nil {
		l.recovered(refused)
		seq++
	}
	for _, w := range group {
		w.seq = seq
		seq += w.n
	}
	return nil
}

// Hurry announces that the log is about to close. From then on each append to a log of [Start] times out after 2.5
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

// Close syncs and closes the log. Events in the queue and later ones return [os.ErrClosed]. Do not call Close from
// the function passed to OnChange.
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
	l.own.turn <- struct{}{}
	defer func() { <-l.own.turn }()
	if err := l.disk.close(); err != nil {
		return fmt.Errorf("close log: %w", err)
	}
	return nil
}
