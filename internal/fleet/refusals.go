package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/scopefs/scopefs/audit"
)

// refusals records what a node refuses: some at once, and then one in a time with the number of others. The holder of a turn
// has it.
type refusals struct {
	outcome  string // of the events
	record   func(context.Context, audit.Event) error
	pause    time.Duration // for each, so that a flood costs little of a processor
	room     int           // that are recorded at once
	refilled time.Time
	more     int // that were not recorded since the last one
}

func newRefusals(outcome string, pause time.Duration, record func(context.Context, audit.Event) error) *refusals {
	return &refusals{outcome: outcome, record: record, pause: pause, room: maxRefused, refilled: time.Now()}
}

// add records that something is refused. It returns an error only when ctx ends.
func (r *refusals) add(ctx context.Context, detail string) error {
	select {
	case <-time.After(r.pause):
	case <-ctx.Done():
	}
	for now := time.Now(); r.room < maxRefused && now.Sub(r.refilled) >= refusedTime; r.refilled = r.refilled.Add(refusedTime) {
		r.room++
	}
	if r.room == maxRefused {
		r.refilled = time.Now()
	}
	if r.room == 0 {
		r.more++
		return nil
	}
	if r.more > 0 {
		detail += fmt.Sprintf(" (and %d more)", r.more)
	}
	r.room, r.more = r.room-1, 0
	err := r.record(ctx, audit.Event{Event: audit.KindDaemon, Outcome: r.outcome, Detail: detail})
	if errors.Is(err, context.Canceled) {
		return err
	}
	return nil // the log says itself that it cannot be written
}
