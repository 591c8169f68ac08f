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
	mu        sync.Mutex   // guards the fields below, and the lines
	taken     time.Time    // when the first view was taken over: the last daemon has recorded nothing since
	since     time.Time    // zero: nothing was read yet
	near, far func() lines // of events since the time since, and of those before; each is read once
}

// lines are the times of events, oldest first.
type lines map[line][]time.Time

// line is what identifies an event besides its time. A thread has one request at a time.
type line struct {
	agent, op, path, errno string
	verdict                audit.Verdict
	pid                    int
}

// The log is first read for events since againSpan before the request that asks, then for those of againTime before the
// views were taken over: the newest maxAgain of each reading. They are kept for againKept: then each view has sent what it had to.
const (
	againSpan = time.Second
	againTime = time.Minute
	againKept = 10 * time.Minute
	maxAgain  = 100_000
)

// Take prepares for a view that is taken over. The log is in a directory.
func (a *Again) Take(log string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.taken.IsZero() {
		return
	}
	a.taken = time.Now()
	a.near = sync.OnceValue(func() lines { return readLines(log, a.since, a.taken) })
	a.far = sync.OnceValue(func() lines { return readLines(log, a.oldest(), a.since) })
	time.AfterFunc(againKept, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		none := func() lines { return nil }
		a.near, a.far = none, none
	})
}

func (a *Again) oldest() time.Time { return a.taken.Add(-againTime) }

// readLines reads the events of a time.
func readLines(log string, since, until time.Time) lines {
	type event struct {
		line
		at time.Time
	}
	var newest []event
	for e, err := range audit.Read(context.Background(), log, audit.Filter{Since: since, Rising: true}, false) {
		path, escaped := audit.Unescape(e.Path) // the log has less of a long path: then the event is recorded again
		switch {
		case err != nil || escaped != nil || e.Event != audit.KindFile || !e.Time.Before(until):
			continue
		case len(newest) == 2*maxAgain:
			newest = slices.Delete(newest, 0, maxAgain)
		}
		newest = append(newest, event{line{e.Agent, e.Op, path, e.Errno, e.Verdict, e.PID}, e.Time})
	}
	all := lines{}
	for _, e := range newest[max(0, len(newest)-maxAgain):] {
		all[e.line] = append(all[e.line], e.at)
	}
	return all
}

// Recorded reports whether the log has an event of a request that began at a time.
func (a *Again) Recorded(e audit.Event, began time.Time) bool {
	a.mu.Lock()
	if a.taken.IsZero() || !began.Before(a.taken) { // this daemon has started the view, or had taken it over
		a.mu.Unlock()
		return false
	}
	if a.since.IsZero() {
		a.since = began.Add(-againSpan)
		if oldest := a.oldest(); a.since.Before(oldest) {
			a.since = oldest
		}
	}
	older, near, far := began.Before(a.since), a.near, a.far
	a.mu.Unlock()
	l := line{e.Agent, e.Op, e.Path, e.Errno, e.Verdict, e.PID}
	return older && a.take(far(), l, began) || a.take(near(), l, began)
}

// take removes a line, and reports whether there was one.
func (a *Again) take(from lines, l line, began time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(from[l], func(at time.Time) bool { return !at.Before(began) })
	if i >= 0 {
		from[l] = slices.Delete(from[l], i, i+1)
	}
	return i >= 0
}
