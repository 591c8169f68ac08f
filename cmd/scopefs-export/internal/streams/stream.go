// Package streams is the process of one stream: it follows the log, and gives the events to a receiver, each at least once.
//
// The log is the queue. While the receiver takes nothing, the process reads nothing. The cursor, a file, has the number of
// the last event that the receiver has acknowledged.
package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/streams/wire"
)

// A Sender gives events to a receiver.
type Sender interface {
	// Send returns nil when the receiver has all the events. They follow one another in the log. After an error the stream
	// calls it again with the same events. It returns soon after ctx has ended.
	Send(ctx context.Context, events []audit.Event) error
	io.Closer
}

// The bounds of a stream.
const (
	queued     = 256                    // events that were read ahead
	batchSize  = 1000                   // events of one Send
	batchBytes = 1 << 20                // bytes of their lines
	linger     = 200 * time.Millisecond // at least, from one batch to the next, unless it is full
	slow       = 300 * time.Millisecond // a Send that takes longer is reported before its end
	sendTime   = 30 * time.Second       // for one Send
	firstPause = 250 * time.Millisecond // after an attempt that failed
	lastPause  = 30 * time.Second
	reportTime = 5 * time.Second
	maxError   = 1 << 10 // bytes of an error in a report: a receiver's answer may be in it
)

// A stream is what one process does.
type stream struct {
	log     string // the directory
	cursor  *cursor
	senders []Sender                                   // in turn, each with all events
	report  func(context.Context, wire.Progress) error // to the daemon

	last uint64       // the number of the last event of a batch; 0: none
	next *audit.Event // read, and too large for the last batch
	done time.Time    // when the last batch was collected
}

// run follows the log until ctx ends, or the log cannot be read.
func (s *stream) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.last = s.cursor.at.Sent
	s.tell(ctx, wire.Progress{})
	events, failed := make(chan audit.Event, queued), make(chan error, 1)
	go func() {
		defer close(events)
		failed <- s.read(ctx, events)
	}()
	for {
		batch := s.collect(ctx, events)
		if len(batch) == 0 {
			cancel()
			return <-failed
		}
		if err := s.deliver(ctx, batch); err != nil {
			return err
		}
	}
}

// read puts the events after the cursor into a channel.
func (s *stream) read(ctx context.Context, to chan<- audit.Event) error {
	for e, err := range audit.Read(ctx, s.log, audit.Filter{After: s.cursor.at.Sent}, true) {
		switch {
		case err != nil && e.Raw == nil:
			return err
		case err != nil: // damaged: the number of the next event shows it
			continue
		}
		select {
		case to <- e:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// collect waits for an event, and returns it with those that come until linger after the last batch. It returns none when there
// are no more.
func (s *stream) collect(ctx context.Context, events <-chan audit.Event) (batch []audit.Event) {
	defer func() { s.done = time.Now() }()
	size := 0
	add := func(e audit.Event) (more bool) {
		if size += len(e.Raw); size > batchBytes && len(batch) > 0 {
			s.next = &e
			return false
		}
		batch = append(batch, e)
		return len(batch) < batchSize
	}
	if s.next != nil {
		e := *s.next
		s.next = nil
		add(e)
	}
	var enough <-chan time.Time // from the first event on
	for {
		if len(batch) > 0 && enough == nil {
			enough = time.After(linger - time.Since(s.done))
		}
		select {
		case e, ok := <-events:
			if !ok || !add(e) {
				return batch
			}
		case <-enough:
			return batch
		case <-ctx.Done():
			return nil
		}
	}
}

// deliver gives a batch to each sender, again until all have taken it, and moves the cursor.
func (s *stream) deliver(ctx context.Context, batch []audit.Event) error {
	s.gaps(ctx, batch)
	waits := wire.Progress{Oldest: batch[0].Time}
	told := s.tellSlow(ctx, waits)
	defer told()
	left := s.senders
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := try(ctx, &left, batch)
		told()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			break
		}
		text := err.Error()
		waits.Error = text[:min(len(text), maxError)]
		s.tell(ctx, waits)
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := s.cursor.move(batch[len(batch)-1].Seq); err != nil {
		return err
	}
	s.tell(ctx, wire.Progress{})
	return nil
}

// tellSlow reports that a batch waits: at once if it has waited, else unless stop is called soon. After stop it reports nothing.
func (s *stream) tellSlow(ctx context.Context, waits wire.Progress) (stop func()) {
	if time.Since(waits.Oldest) > slow+linger {
		s.tell(ctx, waits)
		return func() {}
	}
	done := make(chan struct{})
	late := time.AfterFunc(slow, func() {
		defer close(done)
		s.tell(ctx, waits)
	})
	return sync.OnceFunc(func() {
		if !late.Stop() {
			<-done
		}
	})
}

// try gives a batch to the senders that are left, until one fails.
func try(ctx context.Context, left *[]Sender, batch []audit.Event) error {
	for len(*left) > 0 {
		once, cancel := context.WithTimeout(ctx, sendTime)
		err := (*left)[0].Send(once, batch)
		cancel()
		if err != nil {
			return err
		}
		*left = (*left)[1:]
	}
	return nil
}

// gaps reports the numbers before and between the events of a batch that the log does not have.
func (s *stream) gaps(ctx context.Context, batch []audit.Event) {
	for _, e := range batch {
		if s.last > 0 && e.Seq > s.last+1 {
			s.tell(ctx, wire.Progress{Oldest: e.Time, Gap: fmt.Sprintf(
				"%d events, %d to %d, are not in the log any more: keep more of it (log: keep, size)", e.Seq-s.last-1, s.last+1, e.Seq-1)})
		}
		s.last = e.Seq
	}
}

// tell reports to the daemon. The process ends with the daemon, so that errors need no reaction.
func (s *stream) tell(ctx context.Context, p wire.Progress) {
	ctx, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	p.Sent = s.cursor.at.Sent
	_ = s.report(ctx, p)
}

// close ends the connections of the senders, and frees the cursor.
func (s *stream) close() (err error) {
	for _, one := range s.senders {
		err = errors.Join(err, one.Close())
	}
	s.cursor.close()
	return err
}
