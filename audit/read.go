package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Filter chooses events; the zero value chooses all.
type Filter struct {
	Agent  string    // of this agent
	Denied bool      // denied or a violation
	Since  time.Time // recorded then or later
	Seq    uint64    // the event with this number
}

func (f Filter) match(e Event) bool {
	return (f.Agent == "" || e.Agent == Escape(f.Agent)) &&
		(!f.Denied || e.Verdict == Deny || e.Verdict == Violation) &&
		!e.Time.Before(f.Since) &&
		(f.Seq == 0 || e.Seq == f.Seq)
}

// pollInterval is how soon a reader that follows sees a new event.
const pollInterval = 50 * time.Millisecond

// Read yields the events of the log in dir that f chooses, in order. With follow it goes on with those that are appended,
// from segment to segment, until ctx ends; otherwise it stops after the last whole line. It needs no more than the right
// to read, and never waits for a writer longer than one group takes.
//
// A line that is not an event is yielded as an error, with the line in Raw, and reading goes on; so is a compressed
// segment, or a part of it, that cannot be read, with an empty Raw. Any other error is the
// last thing that is yielded; that includes the end of ctx.
func Read(ctx context.Context, dir string, f Filter, follow bool) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		r := reader{filter: newMatcher(f), follow: follow, yield: yield}
		err := r.open(dir)
		if err == nil {
			err = r.run(ctx)
		}
		r.close()
		if err != nil && err != errStop {
			yield(Event{}, fmt.Errorf("read log: %w", err))
		}
	}
}

// errStop ends a reader whose caller has had enough.
var errStop = errors.New("stop")

type reader struct {
	filter *matcher
	follow bool
	yield  func(Event, error) bool

	root   *os.Root
	lock   *os.File // nil in a copy of a log that came without
	number int      // of the segment being read
	file   *os.File // that segment, nil before the first
	packed bool     // that segment
	offset int64    // of the first line not yet read; of a packed one, 1 when it was read
}

func (r *reader) open(dir string) (err error) {
	r.root, err = os.OpenRoot(dir)
	return err
}

func (r *reader) close() {
	if r.file != nil {
		r.file.Close()
	}
	if r.lock != nil {
		r.lock.Close()
	}
	if r.root != nil {
		r.root.Close()
	}
}

func (r *reader) run(ctx context.Context) error {
	for {
		next, err := r.next() // asked before the rest is read: a segment that has a successor grows no more
		if err != nil {
			return err
		}
		if err := r.drain(ctx, next.number != 0); err != nil {
			return err
		}
		switch {
		case next.number != 0:
			err = r.turnTo(next)
		case r.follow:
			err = wait(ctx, pollInterval)
		default:
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// next returns the segment that follows the current one; its number is 0 when there is none.
func (r *reader) next() (segment, error) {
	all, err := segments(r.root)
	for _, seg := range all {
		if seg.number > r.number {
			return seg, err
		}
	}
	return segment{}, err
}

// turnTo opens a segment, unless it has been removed.
func (r *reader) turnTo(seg segment) error {
	f, seg, err := openEither(r.root, seg)
	if r.file != nil {
		r.file.Close()
	}
	r.file, r.number, r.packed, r.offset = f, seg.number, seg.packed, 0
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// drain yields what is wanted of the lines that the current segment holds by now. Half a line is left for the next time,
// unless the segment is complete.
func (r *reader) drain(ctx context.Context, complete bool) error {
	if r.file == nil {
		return ctx.Err()
	}
	if r.packed {
		if r.offset > 0 {
			return ctx.Err()
		}
		r.offset = 1
		pieces, err := packedPieces(r.file, segment{r.number, true}.name(), r.filter)
		if err != nil { // the other segments may be whole
			if !r.yield(Event{Raw: []byte{}}, err) {
				return errStop
			}
			return nil
		}
		return scanAll(ctx, r.filter, pieces, r.yield)
	}
	size, err := r.size()
	if err != nil {
		return err
	}
	if r.offset >= size {
		return ctx.Err()
	}
	var failed error
	err = scanAll(ctx, r.filter, plainPieces(r.file, segmentName(r.number), &r.offset, size, complete, &failed), r.yield)
	return cmp.Or(err, failed)
}

// size returns how far the current segment is settled. A writer cuts back what it could not write whole before it lets go
// of the lock, so that what is seen under the lock stays.
func (r *reader) size() (_ int64, err error) {
	if r.lock == nil {
		r.lock, err = r.root.OpenFile(lockName, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
	}
	if r.lock != nil {
		if err := flock(r.lock, unix.LOCK_SH); err != nil {
			return 0, err
		}
		defer func() { _ = unix.Flock(int(r.lock.Fd()), unix.LOCK_UN) }()
	}
	info, err := r.file.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
