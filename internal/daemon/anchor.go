package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/proof"
	"github.com/scopefs/scopefs/internal/anchor"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/oneshot"
)

// The bounds of anchors.
const (
	anchorLate  = 3                // intervals without a head kept elsewhere, until an alarm
	anchorPause = 15 * time.Minute // the longest time between two tries of an anchor that fails
)

// anchorHeads gives the signed heads of the log to the operator's anchors, until stop, which waits for their processes.
func (d *Daemon) anchorHeads() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	own := new(atomic.Int64)
	for _, a := range d.Settings.Log.Anchors {
		w := &anchorState{Anchor: a, daemon: d, own: own, done: time.Now()}
		w.show(func(s *api.Anchor) {})
		working.Go(func() { w.run(ctx) })
	}
	return func() { cancel(); working.Wait() }
}

// Anchors returns how far the anchors are, in the order of the settings.
func (d *Daemon) Anchors() (list []api.Anchor) {
	for _, a := range d.Settings.Log.Anchors {
		if s, ok := d.anchored.Load(a.Name); ok {
			list = append(list, s.(api.Anchor))
		}
	}
	return list
}

// anchorState is the state of one anchor. Only its goroutine uses it.
type anchorState struct {
	config.Anchor
	daemon *Daemon
	own    *atomic.Int64       // lines that anchors have caused, of all anchors: they are no reason to take a head
	lines  int64               // other lines below the last head that was kept
	done   time.Time           // when that was
	late   bool                // an alarm was recorded
	fails  int                 // in a row
	stuck  *oneshot.StuckError // a process that may still work; nil: none
	shown  api.Anchor          // what others see
}

func (a *anchorState) run(ctx context.Context) {
	for {
		pause := min(a.Every<<min(a.fails, 10), max(a.Every, anchorPause))
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if err := a.try(ctx); err != nil && ctx.Err() == nil {
			a.fails++
			a.alarm(ctx, err)
		}
	}
}

// try gives the head to the anchor, unless the log has no line that an earlier head lacks.
func (a *anchorState) try(ctx context.Context) error {
	if a.stuck != nil {
		select {
		case <-a.stuck.Ended:
			a.stuck = nil
		default:
			return a.stuck
		}
	}
	head, size, err := proof.Head(a.daemon.Paths.Audit())
	if err != nil {
		return err
	}
	lines := size - a.own.Load()
	if lines <= a.lines && a.fails == 0 {
		a.kept(size)
		return nil
	}
	err = anchor.Give(ctx, a.request(head, size))
	if stuck, ok := errors.AsType[*oneshot.StuckError](err); ok {
		a.stuck = stuck
	}
	if err != nil {
		return err
	}
	a.lines, a.late, a.fails = lines, false, 0
	a.kept(size)
	return a.record(ctx, audit.OutcomeAnchored, fmt.Sprintf("%s has the head of %d lines", a.Name, size))
}

func (a *anchorState) request(head []byte, size int64) anchor.Request {
	p := a.daemon.Paths
	r := anchor.Request{Anchor: a.Anchor, Head: head, Size: size, State: p.State, Audit: p.Audit(), Private: []string{p.Base, p.State, p.Run}}
	_, _ = fmt.Sscanf(string(head), "%s\n", &r.Origin)
	r.Host, _ = os.Hostname()
	for _, def := range a.daemon.Definitions() {
		if def.Dir != "" {
			r.Private = append(r.Private, def.Dir)
		}
	}
	return r
}

// kept notes that the anchor has the newest head.
func (a *anchorState) kept(size int64) {
	a.done = time.Now()
	a.show(func(s *api.Anchor) { *s = api.Anchor{Kept: a.done, Size: size} })
}

// show changes what others see.
func (a *anchorState) show(change func(*api.Anchor)) {
	change(&a.shown)
	a.shown.Name = a.Name
	a.daemon.anchored.Store(a.Name, a.shown)
}

func (a *anchorState) record(ctx context.Context, outcome, detail string) error {
	a.own.Add(1)
	return a.daemon.Log.Record(ctx, audit.Event{Event: audit.KindAudit, Outcome: outcome, Detail: detail})
}

// alarm records once that the head is late, or of another history.
func (a *anchorState) alarm(ctx context.Context, err error) {
	a.daemon.Logger.Warn("a head of the log was not taken elsewhere", "anchor", a.Name, "err", err)
	late := a.late || errors.Is(err, anchor.ErrFork) || time.Since(a.done) >= anchorLate*a.Every
	a.show(func(s *api.Anchor) { s.Error, s.Late = err.Error(), late })
	if a.late || !late {
		return
	}
	a.late = true
	_ = a.record(ctx, audit.OutcomeLate, fmt.Sprintf("%s: %v", a.Name, err))
}
