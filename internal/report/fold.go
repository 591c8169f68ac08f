package report

import (
	"cmp"
	"time"

	"github.com/scopefs/scopefs/audit"
)

// maxFolds bounds the events and folds that a folder holds.
const maxFolds = 256

// folded is an event, with later denials that are equal.
type folded struct {
	audit.Event           // the first; Unrecorded is the sum
	Count       int       // events
	Last        time.Time // of the last of them
}

// folder joins equal denials and violations, for people to read: those of the same agent,
// operation, path, rule, answer and program. Other events may lie between them. It joins
// nothing else. It returns all events, in the order of the first ones, and holds at most
// 256. Its methods are not safe for concurrent use.
type folder struct {
	Gap  time.Duration // from one event to the next; default 10s
	Span time.Duration // from the first event to the last; default 1m

	waiting []*fold // oldest first
	open    map[foldKey]*fold
}

type fold struct {
	folded
	key   foldKey
	joins bool // it is a denial
}

// foldKey is what equal denials share. It leaves out numbers that tell processes, sessions
// and calls apart.
type foldKey struct {
	verdict audit.Verdict
	status  int

	kind, agent, chain, op, path, target, rule, ruleKind, outcome, errno, program, detail string
}

// Add takes the next event of the log, and returns those that no later event can join.
func (f *folder) Add(e audit.Event) []folded {
	done := f.Until(e.Time)
	next := &fold{folded: folded{e, 1, e.Time}, joins: e.Verdict == audit.Deny || e.Verdict == audit.Violation, key: foldKey{
		e.Verdict, e.Status,
		e.Event, e.Agent, e.Chain, e.Op, e.Path, e.Target, e.Rule, e.RuleKind, e.Outcome, e.Errno, e.Program, e.Detail,
	}}
	if old := f.open[next.key]; old != nil && next.joins {
		old.Count++
		old.Last = e.Time
		old.Unrecorded += e.Unrecorded
		return done
	}
	if next.joins {
		if f.open == nil {
			f.open = map[foldKey]*fold{}
		}
		f.open[next.key] = next
	}
	f.waiting = append(f.waiting, next)
	if len(f.waiting) > maxFolds {
		done = append(done, f.first())
	}
	return append(done, f.Until(e.Time)...)
}

// Until returns the events that no event at a time can join. A reader that waits for
// events calls it from time to time.
func (f *folder) Until(now time.Time) (done []folded) {
	for len(f.waiting) > 0 {
		e := f.waiting[0]
		if e.joins && now.Sub(e.Last) <= cmp.Or(f.Gap, 10*time.Second) && now.Sub(e.Time) <= cmp.Or(f.Span, time.Minute) {
			break
		}
		done = append(done, f.first())
	}
	return done
}

// Rest returns the events that are left.
func (f *folder) Rest() (done []folded) {
	for len(f.waiting) > 0 {
		done = append(done, f.first())
	}
	return done
}

func (f *folder) first() folded {
	e := f.waiting[0]
	f.waiting[0] = nil
	f.waiting = f.waiting[1:]
	if e.joins {
		delete(f.open, e.key)
	}
	return e.folded
}
