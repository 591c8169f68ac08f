package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/agentproc"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/holder"
	"github.com/scopefs/scopefs/internal/holder/wire"
	"github.com/scopefs/scopefs/internal/outlive"
	"github.com/scopefs/scopefs/scope"
)

// ErrHandOver is the cause of a context of Run that leaves views to the next daemon.
var ErrHandOver = errors.New("another daemon follows")

// Signals returns a context for Run that ends with end, or by a signal.
func Signals(ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	go func() {
		if <-signals == unix.SIGTERM { // what a service manager sends for a restart
			cancel(ErrHandOver)
		}
		cancel(nil)
	}()
	return ctx, func() { cancel(nil) }
}

// stopTime bounds the end of a daemon. A process that waits for a frozen disk keeps it up.
const stopTime = time.Minute

// askPause is between two requests to a daemon to end.
const askPause = 100 * time.Millisecond

// Stop ends the daemon with a run directory, and what it or the last one has left to the next. No mount is left.
func Stop(p config.Paths) error {
	if err := stop(p); err != nil {
		return fmt.Errorf("stop the daemon of %s: %w", p.Run, err)
	}
	return nil
}

func stop(p config.Paths) error {
	if err := holder.Stop(p.Holder(), stopTime); err != nil {
		return err
	}
	lock, err := os.Open(filepath.Join(p.Run, "lock"))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return err
	}
	defer lock.Close()
	end := time.Now().Add(stopTime)
	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	for late := waitFree(lock, time.Time{}); late != nil; late = waitFree(lock, time.Now().Add(askPause)) {
		if time.Now().After(end) {
			return fmt.Errorf("not ended within %v: %w", stopTime, cmp.Or(err, late))
		}
		err = api.NewClient(p).Stop(ctx) // a daemon without a holder that could end it; one that starts answers later
	}
	if p.Run, err = filepath.EvalSymlinks(p.Run); err != nil {
		return err
	}
	left, err := leftMounts(p)
	control := fusemount.OpenControl()
	defer control.Close()
	for _, m := range slices.Backward(left) {
		err = errors.Join(err, abort(control, m), unmountDead(p, m))
	}
	return err
}

// waitFree returns with the lock of a run or base directory, when no daemon has it.
func waitFree(lock *os.File, end time.Time) error {
	for {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// lasting reports whether something may outlive the daemon. The mounts of an ordinary user's daemon end with its namespaces,
// and those of one command with the command.
func (d *Daemon) lasting() bool { return d.Root && d.only == "" && d.idle == 0 }

// startHolder connects to the holder that the last daemon has left, or starts one. The caller has the lock of the run directory.
func (d *Daemon) startHolder() error {
	opt := holder.Options{Lock: d.lock, Stop: d.stop, Failed: func(err error) {
		d.Logger.Error("holder", "err", err)
	}}
	if d.lasting() {
		opt.Socket = d.Paths.Holder()
	}
	h, left, err := holder.Start(opt)
	if err != nil {
		return fmt.Errorf("run directory %q: %w", d.Paths.Run, err)
	}
	d.Holder, d.Views.Holder, d.Networks = h, h, &agentproc.Set{Holder: h, Logger: d.Logger}
	if err := d.keepLeft(left); err != nil {
		h.Leave()
		return fmt.Errorf("run directory %q: %w", d.Paths.Run, err)
	}
	return nil
}

// keepLeft keeps what the holder of the last daemon has handed over.
func (d *Daemon) keepLeft(left []*holder.Place) error {
	views, boxes := []*holder.Place{}, []*holder.Place{}
	var taking sync.WaitGroup
	defer taking.Wait()
	for _, p := range left {
		switch p.Kind {
		case wire.View:
			views = append(views, p)
		case wire.Agent:
			taking.Go(func() { d.Networks.Take(p) }) // side by side: a process that does not answer delays no other
		case wire.Web:
			d.runs.web = append(d.runs.web, p)
		default:
			boxes = append(boxes, p)
		}
	}
	if err := d.Views.Leave(views); err != nil {
		return err
	}
	d.runs.left = outlive.Items(boxes, d.Logger)
	return nil
}

// takeOver continues with the views that the last daemon has left, and returns the agents that have none. When it returns,
// every view decides by the present rules, every sandbox is what it would be now, and nothing is left that no agent has.
func (d *Daemon) takeOver(ctx context.Context, expected []*agent.Agent) (others []*agent.Agent) {
	var left []*agent.Agent
	for _, a := range expected {
		if d.Views.IsLeft(a.ID(), "") {
			d.adopt(a)
			left = append(left, a)
		} else {
			others = append(others, a)
		}
	}
	if len(left) > 0 {
		taken := &progress{d: d, what: "views taken over", all: len(left)}
		d.mountExpected(ctx, left, func(id scope.ID, err error) {
			if err != nil {
				d.Logger.Error("mount", "agent", id, "err", err)
			}
			taken.step()
		})
	}
	if ctx.Err() != nil {
		return others // close leaves or ends them
	}
	d.settleRuns()
	d.SettleNetworks()
	d.Views.EndLeft()
	d.Holder.Settled(d.Grace)
	return others
}
