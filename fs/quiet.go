package fs

import (
	"context"
	"sync"
	"syscall"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
)

const (
	quietTime  = time.Minute // from a denial that is recorded to the next equal one
	maxQuiet   = 1024        // denials whose repetitions are counted
	maxQuieted = 512         // bytes of their paths
)

// quiet counts denials by rules that are quiet, so that one of equal denials in a minute
// is recorded. Equal denials have one operation, path and rule: another path is never
// counted with this one. A denial that does not fit is recorded.
type quiet struct {
	started chan struct{} // has a value while tellQuiet must look

	mu   sync.Mutex
	held map[repeated]*repeats
}

// repeated is what equal denials share.
type repeated struct {
	op        scope.Op
	rel, rule string
}

type repeats struct {
	since time.Time // of the denial that is recorded
	count int64     // of the others
	event audit.Event
}

// refuseQuietly is refuse for a denial by a quiet rule.
func (v *View) refuseQuietly(a *ask, e audit.Event, errno syscall.Errno) error {
	key := repeated{a.op, e.Path, e.Rule}
	// While nothing can be recorded, an answer must not depend on what was recorded before.
	if v.opt.Recorder.Err() == nil && v.quiet.repeats(key, time.Now()) {
		return answer(errno)
	}
	e.Unrecorded = v.quiet.take(key)
	err := v.refuse(a, e, errno)
	if err == answer(syscall.EIO) {
		return err
	}
	e.Event, e.Agent, e.Op, e.Errno, e.Outcome = audit.KindFile, string(v.opt.Agent), a.op.String(), errnoName(errno), outcomeRepeated
	v.quiet.hold(key, e, time.Now())
	return err
}

// outcomeRepeated is the outcome of an event that has only the number of denials.
const outcomeRepeated = "repeated"

// repeats reports whether an equal denial was recorded within the last minute, and counts
// this one.
func (q *quiet) repeats(key repeated, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.held[key]
	if r == nil || now.Sub(r.since) >= quietTime {
		return false
	}
	r.count++
	return true
}

// take forgets a denial and returns how often it was repeated.
func (q *quiet) take(key repeated) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.held[key]
	delete(q.held, key)
	if r == nil {
		return 0
	}
	return r.count
}

// hold makes equal denials of the next minute count, if there is room.
func (q *quiet) hold(key repeated, e audit.Event, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(key.rel) > maxQuieted || len(q.held) >= maxQuiet || q.held[key] != nil {
		return
	}
	if q.held == nil {
		q.held = map[repeated]*repeats{}
	}
	e.Unrecorded = 0
	q.held[key] = &repeats{since: now, event: e}
	select {
	case q.started <- struct{}{}:
	default:
	}
}

// expired forgets what was recorded a minute before now. It returns an event for each
// denial that was repeated, and when to look again; the zero time is when another is held.
func (q *quiet) expired(now time.Time) (done []audit.Event, next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key, r := range q.held {
		end := r.since.Add(quietTime)
		switch {
		case end.After(now):
			if next.IsZero() || end.Before(next) {
				next = end
			}
			continue
		case r.count > 0:
			r.event.Unrecorded = r.count
			done = append(done, r.event)
		}
		delete(q.held, key)
	}
	return done, next
}

// tellQuiet records, a minute after each denial, how often it was repeated, and at the end
// of the view the rest. The log counts what it refuses.
func (v *View) tellQuiet() {
	next, wait := time.Time{}, time.NewTimer(0)
	defer wait.Stop()
	for {
		var due <-chan time.Time
		if !next.IsZero() {
			wait.Reset(time.Until(next))
			due = wait.C
		}
		var done []audit.Event
		select {
		case <-v.ended:
			done, _ = v.quiet.expired(time.Now().Add(quietTime))
			v.tell(done)
			return
		case <-v.quiet.started:
		case <-due:
		}
		done, next = v.quiet.expired(time.Now())
		v.tell(done)
	}
}

func (v *View) tell(done []audit.Event) {
	for _, e := range done {
		if err := v.opt.Recorder.Record(context.Background(), e); err != nil {
			v.opt.Logger.Error("repeated denials are not recorded", "path", e.Path, "count", e.Unrecorded, "err", err)
		}
	}
}
