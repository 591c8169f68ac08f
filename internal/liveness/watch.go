// Package liveness has the verdict about a process of ours that does not answer the heartbeat.
package liveness

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/heart"
)

// Watcher watches processes, all of them in one pass each [ProbeTime] while a client may wait for one, else each idleTime. In a
// pass a process that nobody waits for costs a call of its busy function, and no more: it gets no beat, and nothing of it is
// read. The zero Watcher is ready.
type Watcher struct {
	mu   sync.Mutex // nothing is called under it
	all  []*watched
	over chan struct{} // ends the goroutine that makes the passes; there is one while all has some
}

// idleTime is the time between two passes while nobody waits for any process: it bounds how late a pass finds the first client.
const idleTime = 2 * ProbeTime

// watched is one process. Only the goroutine of the passes uses what follows verdict.
type watched struct {
	process Process
	beats   *heart.Heart
	busy    func() bool
	verdict chan error // of one element

	looking sync.Mutex // held by look; and by remove, so that nothing of the process is used after Watch
	gone    bool

	asked bool // a beat may have no response
	since Evidence
	began time.Duration // the process's processor time at the beat
}

// Watch sends beats to a process while a client may wait for it, until the process or ctx ends, and returns why the process
// is to be replaced; nil: one has ended. It looks at the process when a beat has no response: see [Evidence]. A client waits
// for four [ProbeTime] at most when the process is stopped or deadlocked, however long nobody had used it.
//
// busy reports whether a client may wait for the process. It must not block: it delays the watch of every other process.
func (w *Watcher) Watch(ctx context.Context, p Process, beats *heart.Heart, busy func() bool) error {
	one := &watched{process: p, beats: beats, busy: busy, verdict: make(chan error, 1)}
	w.add(one)
	defer w.remove(one)
	select {
	case <-ctx.Done():
		return nil
	case <-p.Ended:
		return nil
	case err := <-one.verdict:
		return err
	}
}

// Watch is the Watch of a Watcher for this process alone.
func Watch(ctx context.Context, p Process, beats *heart.Heart, busy func() bool) error {
	return new(Watcher).Watch(ctx, p, beats, busy)
}

func (w *Watcher) add(one *watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, one)
	if len(w.all) == 1 {
		w.over = make(chan struct{})
		go w.run(w.over)
	}
}

func (w *Watcher) remove(one *watched) {
	one.looking.Lock()
	one.gone = true
	one.looking.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = slices.DeleteFunc(w.all, func(other *watched) bool { return other == one })
	if len(w.all) == 0 {
		close(w.over)
	}
}

// run makes passes until over is closed. It pauses after each, so that two looks at a process are no closer than ProbeTime,
// however long a pass takes.
func (w *Watcher) run(over <-chan struct{}) {
	pause := idleTime
	for now := []*watched(nil); ; {
		select {
		case <-over:
			return
		case <-time.After(pause):
		}
		w.mu.Lock()
		now = append(now[:0], w.all...)
		w.mu.Unlock()
		pause = idleTime
		for _, one := range now {
			if one.look(); one.asked {
				pause = ProbeTime
			}
		}
	}
}

// look is the part of a pass for one process.
func (o *watched) look() {
	o.looking.Lock()
	defer o.looking.Unlock()
	if o.gone {
		return
	}
	busy := o.busy()
	silent := o.asked && o.beats.Silence() > 0
	if silent || busy && o.process.Dying() {
		o.since.Add(o.process, o.began)
		o.since.Answered = silent && o.beats.Silence() == 0 // it may have answered, and slept, before the look
		if why := o.since.Verdict(); why != "" {
			select {
			case o.verdict <- errors.New(why):
			default: // it has one
			}
			return
		}
		if silent && !o.since.Answered {
			return
		}
	}
	o.since, o.asked = Evidence{}, busy
	if busy {
		o.began = o.process.Spent()
		o.beats.Beat()
	}
}
