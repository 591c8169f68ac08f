package ledger

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
)

// Again knows which events of the views that a daemon takes over are in the log already: a view sends those again that the last
// daemon had not answered. It is of all views, because each reading is of all events. An agent may have taken a view over: the log is
// read twice at most, and each line stands for one event.
type Again struct {
	mu    sync.Mutex // also held while the log is read: whoever waits needs what is read
	log   string
	taken time.Time // when the first view was taken over: the last daemon has recorded nothing since
	since time.Time // from when on the log was read; zero: not yet
	lines map[line][]time.Time
}

// line is what identifies an event besides its time. A thread has one request at a time.
type line struct {
	agent, op, path, errno string
	verdict                audit.Verdict
	pid                    int
}

// The log is first read for events since againSpan before the request that asks, then for those of againTime before the
// views were taken over, and for maxAgain in one reading.
const (
	againSpan = time.Second
	againTime = time.Minute
	maxAgain  = 100_000
)

// Take prepares for a view that is taken over. The log is in a directory.
func (a *Again) Take(log string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.taken.IsZero() {
		a.log, a.taken, a.lines = log, time.Now(), map[line][]time.Time{}
	}
}

// read reads the events since a time that were not read yet.
func (a *Again) read(since time.Time) {
	until := a.taken
	if !a.since.IsZero() {
		until = a.since
	}
	a.since = since
	n := 0
	for e, err := range audit.Read(context.Background(), a.log, audit.Filter{Since: since}, false) {
		path, escaped := audit.Unescape(e.Path) // the log has less of a long path: then the event is recorded again
		if err == nil && escaped == nil && e.Event == audit.KindFile && e.Time.Before(until) {
			l := line{e.Agent, e.Op, path, e.Errno, e.Verdict, e.PID}
			a.lines[l] = append(a.lines[l], e.Time)
			n++
		}
		if n == maxAgain {
			return
		}
	}
}

// Recorded reports whether the log has an event of a request that began at a time.
func (a *Again) Recorded(e audit.Event, began time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	oldest := a.taken.Add(-againTime)
	switch {
	case a.taken.IsZero() || !began.Before(a.taken): // this daemon has started the view, or had taken it over
		return false
	case a.since.IsZero() && began.Add(-againSpan).After(oldest):
		a.read(began.Add(-againSpan))
	case a.since.IsZero() || began.Before(a.since) && oldest.Before(a.since):
		a.read(oldest)
	}
	l := line{e.Agent, e.Op, e.Path, e.Errno, e.Verdict, e.PID}
	i := slices.IndexFunc(a.lines[l], func(at time.Time) bool { return !at.Before(began) })
	if i >= 0 {
		a.lines[l] = slices.Delete(a.lines[l], i, i+1)
	}
	return i >= 0
}
