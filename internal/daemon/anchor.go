package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/internal/witness"
	"github.com/scopefs/scopefs/tools/egress"
)

// The bounds of anchors.
const (
	anchorTime  = 30 * time.Second // for a command to end
	anchorLate  = 3                // intervals without a head kept elsewhere, until an alarm
	anchorPause = 15 * time.Minute // the longest time between two tries of a command that fails
)

// anchorHeads gives the signed heads of the log to the operator's commands, until stop, which waits for the commands.
func (d *Daemon) anchorHeads() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	own := new(atomic.Int64)
	for _, a := range d.Settings.Log.Anchors {
		w := &anchor{Anchor: a, daemon: d, own: own, done: time.Now()}
		if v, err := witness.NewVerifier(a.Key); err == nil { // scopefs.yaml was checked
			dial := (&net.Dialer{Timeout: 10 * time.Second}).DialContext
			w.witness = &witness.Witness{URL: a.Witness, Verifier: v, Client: egress.NewClient(egress.NewTransport(dial, egress.ClientLimits{Header: 64 << 10}))}
		}
		working.Go(func() { w.run(ctx) })
	}
	return func() { cancel(); working.Wait() }
}

// An anchor is the state of one command or witness. Only its goroutine uses it.
type anchor struct {
	config.Anchor
	daemon *Daemon
	own    *atomic.Int64 // lines that anchors have caused, of all anchors: they are no reason to take a head
	lines  int64         // other lines below the last head that was kept
	done   time.Time     // when that was
	late   bool          // an alarm was recorded
	fails  int           // in a row

	witness *witness.Witness // nil: a command
}

func (a *anchor) run(ctx context.Context) {
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

// try gives the head to the command, unless the log has no line that an earlier head lacks.
func (a *anchor) try(ctx context.Context) error {
	head, size, err := audit.Head(a.daemon.Paths.Audit())
	if err != nil {
		return err
	}
	lines := size - a.own.Load()
	if lines <= a.lines && a.fails == 0 {
		a.done = time.Now()
		a.daemon.anchored.Store(a.Name, a.done)
		return nil
	}
	if a.witness != nil {
		err = a.submit(ctx)
	} else if err = give(ctx, a.Command, head, anchorTime); err != nil {
		err = fmt.Errorf("%q: %w: run it by hand with scopefs audit head on its standard input", a.Command[0], err)
	}
	if err != nil {
		return err
	}
	a.lines, a.done, a.late, a.fails = lines, time.Now(), false, 0
	a.daemon.anchored.Store(a.Name, a.done)
	return a.record(ctx, audit.OutcomeAnchored, fmt.Sprintf("%s has the head of %d lines", a.Name, size))
}

// submit gives the head to the witness. {state}/heads/NAME gets it with the witness's signature.
func (a *anchor) submit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, anchorTime)
	defer cancel()
	signed, err := a.witness.Add(ctx, func(ctx context.Context, from int64) (h witness.Head, err error) {
		h.Signed, h.Proof, err = audit.Growth(ctx, a.daemon.Paths.Audit(), from)
		return h, err
	})
	if err != nil {
		return err
	}
	return state.SaveHead(a.daemon.Paths.State, a.Name, signed)
}

func (a *anchor) record(ctx context.Context, outcome, detail string) error {
	a.own.Add(1)
	return a.daemon.Log.Record(ctx, audit.Event{Event: audit.KindAudit, Outcome: outcome, Detail: detail})
}

// alarm records once that the head is late, or of another history.
func (a *anchor) alarm(ctx context.Context, err error) {
	a.daemon.Logger.Warn("a head of the log was not taken elsewhere", "anchor", a.Name, "err", err)
	if a.late || !errors.Is(err, witness.ErrFork) && time.Since(a.done) < anchorLate*a.Every {
		return
	}
	a.late = true
	_ = a.record(ctx, audit.OutcomeLate, fmt.Sprintf("%s: %v", a.Name, err))
}
