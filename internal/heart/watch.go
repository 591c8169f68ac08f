package heart

import (
	"context"
	"errors"
	"time"
)

// Watch sends beats to a process until it or ctx ends, and returns why the process is to be replaced; nil: one has ended. It
// looks at the process when a beat has no response: see [Evidence]. A client waits for three [ProbeTime] at most when the
// process is stopped or deadlocked.
//
// busy reports whether a client may wait for the process. While none does, idle is the time between two beats, so that
// idle processes cost next to nothing.
func Watch(ctx context.Context, p Process, beats *Heart, busy func() bool, idle func() time.Duration) error {
	var since Evidence
	began := time.Duration(0) // the process's processor time at the beat
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-p.Ended:
			return nil
		case <-time.After(ProbeTime):
		}
		busy := busy()
		if silent := beats.Silence() > 0; silent || busy && p.Dying() {
			since.Add(p, began)
			since.Answered = silent && beats.Silence() == 0 // it may have answered, and slept, before the look
			if why := since.Verdict(); why != "" {
				return errors.New(why)
			}
			if silent && !since.Answered {
				continue
			}
		}
		if since = (Evidence{}); busy || time.Since(last) >= idle() {
			last, began = time.Now(), p.Spent()
			beats.Beat()
		}
	}
}
