package view

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/liveness"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope/beneath"
)

const (
	spoolPasses = 3 // passes of the Watcher, 2.4 s at most, between two looks at what a view has recorded

	scopeTime = time.Second // between two checks of a scope's directory
)

var errEnded = errors.New("view process ended")

// probe returns an error when the view must be replaced: see [liveness.Watcher]. A view that nobody uses is asked nothing, and
// may be stopped as long as nobody does: a client's request counts, and a message of the daemon that wants an answer.
func (v *View) probe(ctx context.Context, p *served, beats *heart.Heart, conn fusemount.Connection,
	requests *peer.Requests[wire.FromView]) error {
	passes := 0
	busy := func() bool {
		if passes++; passes%spoolPasses == 0 {
			v.spool.Load().check()
		}
		waiting, err := conn.Waiting()
		return err != nil || waiting > 0 || v.asking.Load() > 0 || requests.Waiting() > 0
	}
	err := v.host.Watcher.Watch(ctx, liveness.Process{PID: p.pid, Ended: p.ended}, beats, busy)
	switch {
	case err != nil:
		return fmt.Errorf("view %w", err)
	case ctx.Err() == nil:
		return errEnded
	}
	return nil
}

// watchScope returns an error when the agent's directory or that of its history has been moved or removed, or its file
// system unmounted.
func (v *View) watchScope(ctx context.Context, root *beneath.Root, history kept) error {
	base := v.host.Paths.Base
	all := []watchedDir{{"scope", v.def.Path(base), root, func() (*beneath.Root, error) { return v.def.OpenRoot(base) }}}
	if history.Root != nil {
		open := func() (*beneath.Root, error) { return v.host.FindHistory(v.def) }
		all = append(all, watchedDir{"history", v.host.Paths.History(v.def.Name, v.def.History.Dir), history.Root, open})
	}
	v.mu.Lock()
	shared := v.below.Shared
	v.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first := make(chan error, len(all))
	for _, d := range all {
		go func() { first <- d.watch(ctx, v.host, shared) }()
	}
	err := <-first
	cancel()
	for range all[1:] {
		err = cmp.Or(err, <-first)
	}
	return err
}

// watchedDir is a directory that a view serves.
type watchedDir struct {
	name string
	path string
	root *beneath.Root
	open func() (*beneath.Root, error) // by the path
}

// watch returns an error when the path no more leads to the directory. It looks once it has an event of what is on the way,
// and otherwise never. A file system that other hosts change has no such events, and neither has a directory that the daemon may
// not read: there it looks each scopeTime.
func (d watchedDir) watch(ctx context.Context, host *Host, shared bool) error {
	was, err := identity(d.root)
	if err != nil {
		return err
	}
	for warned := false; ; {
		var changed <-chan struct{}
		watch, unwatched := host.Moves.Watch(d.path)
		if unwatched == nil {
			changed = watch.Changed
		} else if !warned {
			warned = true
			host.Logger.Debug("a directory is looked at each second", "err", unwatched)
		}
		err := d.moved(was)
		again := (<-chan time.Time)(nil)
		if unwatched != nil || shared {
			again = time.After(scopeTime)
		}
		if err == nil {
			select {
			case <-ctx.Done():
			case <-changed:
			case <-again:
			}
		}
		if watch != nil {
			watch.Close()
		}
		if err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// moved returns an error unless the path leads to the directory that it led to.
func (d watchedDir) moved(was beneath.FileID) error {
	now, err := d.open()
	if err != nil {
		return fmt.Errorf("the %s is gone: %w", d.name, err)
	}
	is, err := identity(now)
	now.Close()
	if err != nil {
		return fmt.Errorf("the %s is gone: %w", d.name, err)
	}
	if is != was {
		return fmt.Errorf("the %s is another directory now", d.name)
	}
	return nil
}

// setLate notes why changes by other processes become visible late; "": they do not.
func (v *View) setLate(why string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.late = why
}

func identity(root *beneath.Root) (beneath.FileID, error) {
	dir, err := root.Object("")
	if err != nil {
		return beneath.FileID{}, err
	}
	defer dir.Close()
	st, err := dir.Stat()
	if err != nil {
		return beneath.FileID{}, err
	}
	return st.ID(), nil
}
