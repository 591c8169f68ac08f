package ledger

import (
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
)

// Repeats records the first of equal events in a minute, with the number of the others since the last. The caller sets Event
// and Record.
type Repeats struct {
	Event  func(by uint32, others int64) audit.Event // by is the thread or the user that caused it; 0: unknown
	Record func(audit.Event)

	mu    sync.Mutex
	since time.Time // of the last that is recorded
	count int64     // of the others after it

	recording sync.WaitGroup
}

const repeatTime = time.Minute

// Add counts an event. A thread that caused it waits until Add returns. Add does not wait for the log.
func (r *Repeats) Add(by uint32) {
	r.mu.Lock()
	if time.Since(r.since) < repeatTime {
		r.count++
		r.mu.Unlock()
		return
	}
	others := r.count
	r.since, r.count = time.Now(), 0
	r.mu.Unlock()
	e := r.Event(by, others)
	r.recording.Go(func() { r.Record(e) })
}

// Close records what was counted, when there are no more.
func (r *Repeats) Close() {
	r.recording.Wait()
	r.mu.Lock()
	others := r.count
	r.count = 0
	r.mu.Unlock()
	if others > 0 {
		r.Record(r.Event(0, others))
	}
}
