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

	"github.com/scopefs/scopefs/audit/segment"
)

// Filter selects events: those that fit all of its fields. The zero value selects all events.
type Filter struct {
	Agent, Session, Call, Op string
	RuleKind                 string
	Verdict                  Verdict
	Denied                   bool      // only denials and violations
	Since                    time.Time // only events at or after this time
	Rising                   bool      // skip what is older than Since as if the clock was never set back: reads far less of a log
	Seq                      uint64    // only the event with this number
	After                    uint64    // only events with a number above this one
}

// exact returns the fields that an event must have, by their keys in a line.
func (f Filter) exact() map[string]string {
	return map[string]string{
		"agent": f.Agent, "session": f.Session, "call": f.Call, "op": f.Op, "verdict": string(f.Verdict), "rule_kind": f.RuleKind,
	}
}

func (f Filter) match(e Event) bool {
	same := func(want, got string) bool { return want == "" || got == Escape(want) }
	return same(f.Agent, e.Agent) && same(f.Session, e.Session) && same(f.Call, e.Call) && same(f.Op, e.Op) &&
		same(string(f.Verdict), string(e.Verdict)) && same(f.RuleKind, e.RuleKind) &&
		(!f.Denied || e.Verdict == Deny || e.Verdict == Violation) &&
		!e.Time.Before(f.Since) &&
		(f.Seq == 0 || e.Seq == f.Seq) && e.Seq > f.After
}

// Read returns an iterator over the events in the log in dir that match f, in order. With follow it continues with
// new events until ctx ends, at once if this host records them. Without follow it stops after the last whole line.
// It needs only read permission, and waits for a writer at most as long as one group takes.
//
// For a line that is not an event, Read yields an error and the line in Raw, and continues. For a compressed segment,
// or a part of one, that cannot be read, it yields an error and an empty Raw, and continues. Any other error,
// including that of ctx, is the last value.
func Read(ctx context.Context, dir string, f Filter, follow bool) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		r := reader{filter: newMatcher(f), follow: follow, yield: yield, changes: follower{dir: dir}}
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

// errStop stops a reader when the loop over its events has ended.
var errStop = errors.New("stop")

type reader struct {
	filter *matcher
	follow bool
	yield  func(Event, error) bool

	root   *os.Root
	lock   *os.File // nil for a copy of a log without a lock file
	number int      // the number of the current segment
	file   *os.File // the current segment; nil before the first
	packed bool     // whether the current segment is packed
	offset int64    // the first unread line; in a packed segment 1 after it was read

	changes follower // of the current segment
}

func (r *reader) open(dir string) (err error) {
	r.root, err = os.OpenRoot(dir)
	return err
}

func (r *reader) close() {
	for _, f := range []*os.File{r.changes.file, r.file, r.lock} {
		if f != nil {
			f.Close()
		}
	}
	if r.root != nil {
		r.root.Close()
	}
}

func (r *reader) run(ctx context.Context) error {
	for {
		next, err := r.next() // before draining: a segment with a successor does not grow
		if err != nil {
			return err
		}
		before := r.offset
		if err := r.drain(ctx, next.Number != 0); err != nil {
			return err
		}
		switch {
		case next.Number != 0:
			err = r.advance(next)
		case r.follow:
			err = r.changes.wait(ctx, r.offset != before)
		default:
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// next returns the segment after the current one. Its number is 0 if there is none.
func (r *reader) next() (segment.Segment, error) {
	all, err := segment.List(r.root)
	for _, seg := range all {
		if seg.Number > r.number {
			return seg, err
		}
	}
	return segment.Segment{}, err
}

// advance opens a segment. It returns nil if the segment was removed.
func (r *reader) advance(seg segment.Segment) error {
	f, seg, err := segment.Open(r.root, seg)
	if r.file != nil {
		r.file.Close()
	}
	r.file, r.number, r.packed, r.offset = f, seg.Number, seg.Packed, 0
	if err == nil && r.follow && !r.packed {
		r.changes.begin(seg.Name())
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// drain yields the matching lines that the current segment holds now. It leaves a partial last line for the next
// call, unless the segment is complete.
func (r *reader) drain(ctx context.Context, complete bool) error {
	if r.file == nil {
		return ctx.Err()
	}
	if r.packed {
		if r.offset > 0 {
			return ctx.Err()
		}
		r.offset = 1
		pieces, err := packedPieces(r.file, segment.Segment{Number: r.number, Packed: true}.Name(), r.filter)
		if err != nil { // continue with the other segments
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
	if r.offset == 0 && r.filter.Rising {
		r.offset = skip(r.file, size, r.filter.Since)
	}
	var failed error
	err = scanAll(ctx, r.filter, plainPieces(r.file, segment.Name(r.number), &r.offset, size, complete, &failed), r.yield)
	return cmp.Or(err, failed)
}

// size returns the size of the current segment under a shared lock. A writer truncates a partial write before it
// releases the lock, so these bytes do not change.
func (r *reader) size() (_ int64, err error) {
	if r.lock == nil {
		r.lock, err = r.root.OpenFile(lockName, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
	}
	if r.lock != nil {
		if err := segment.Lock(r.lock, unix.LOCK_SH); err != nil {
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
