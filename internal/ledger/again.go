package ledger

import (
	"context"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
)

// Again has the latest events of an agent in the log when its view was taken over. The view sends those again that the last
// daemon had not answered: they may be in the log. An agent may have taken the view over; the log is read once, and each line
// stands for one event.
type Again struct {
	read func() map[line][]time.Time // once

	mu sync.Mutex // guards the lines
}

// line is what identifies an event besides its time. A thread has one request at a time.
type line struct {
	op, path, errno string
	verdict         audit.Verdict
	pid             int
}

// The log is read for events of againTime before the view was taken over, and maxAgain at most.
const (
	againTime = time.Minute
	maxAgain  = 100_000
)

// NewAgain returns the events of an agent that are in the log in a directory now.
func NewAgain(log string, id scope.ID) *Again {
	taken := time.Now()
	return &Again{read: sync.OnceValue(func() map[line][]time.Time {
		lines, n := map[line][]time.Time{}, 0
		filter := audit.Filter{Agent: string(id), Since: taken.Add(-againTime)}
		for e, err := range audit.Read(context.Background(), log, filter, false) {
			path, escaped := audit.Unescape(e.Path) // the log has less of a long path: then the event is recorded again
			if err == nil && escaped == nil && e.Event == audit.KindFile && e.Time.Before(taken) {
				l := line{e.Op, path, e.Errno, e.Verdict, e.PID}
				lines[l] = append(lines[l], e.Time)
				n++
			}
			if n == maxAgain {
				break
			}
		}
		return lines
	})}
}

// Recorded reports whether the log has an event of a request that began at a time. It is false of a nil Again.
func (a *Again) Recorded(e audit.Event, began time.Time) bool {
	if a == nil {
		return false
	}
	lines := a.read()
	a.mu.Lock()
	defer a.mu.Unlock()
	l := line{e.Op, e.Path, e.Errno, e.Verdict, e.PID}
	times := lines[l]
	if len(times) == 0 || times[len(times)-1].Before(began) {
		return false
	}
	lines[l] = times[:len(times)-1]
	return true
}
