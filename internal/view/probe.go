package view

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/scopefs/scopefs/fs/fusedev"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/scope/beneath"
)

const (
	spoolPasses = 5 // passes of the Watcher, 2 s, between two looks at what a view has recorded

	scopeTime = time.Second // between two checks of a scope's directory
)

var errEnded = errors.New("view process ended")

// probe returns an error when the view must be replaced: see [heart.Watcher]. A view that nobody uses is asked nothing, and
// may be stopped as long as nobody does: a client's request counts, and a message of the daemon that wants an answer.
func (v *View) probe(ctx context.Context, p *served, beats *heart.Heart, conn fusedev.Connection, requests *peer.Requests[FromView]) error {
	passes := 0
	busy := func() bool {
		if passes++; passes%spoolPasses == 0 {
			v.spool.Load().check()
		}
		waiting, err := conn.Waiting()
		return err != nil || waiting > 0 || v.asking.Load() > 0 || requests.Waiting() > 0
	}
	err := v.host.Watcher.Watch(ctx, heart.Process{PID: p.pid, Ended: p.ended}, beats, busy)
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
	watched := []struct {
		name string
		root *beneath.Root
		open func() (*beneath.Root, error)
		was  beneath.FileID
	}{
		{name: "scope", root: root, open: func() (*beneath.Root, error) { return v.def.OpenRoot(v.host.Paths.Base) }},
		{name: "history", root: history.Root, open: func() (*beneath.Root, error) { return v.host.FindHistory(v.def) }},
	}
	if history.Root == nil {
		watched = watched[:1]
	}
	for i, w := range watched {
		was, err := identity(w.root)
		if err != nil {
			return err
		}
		watched[i].was = was
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(scopeTime):
		}
		for _, w := range watched {
			now, err := w.open()
			if err != nil {
				return fmt.Errorf("the %s is gone: %w", w.name, err)
			}
			is, err := identity(now)
			now.Close()
			if err != nil {
				return fmt.Errorf("the %s is gone: %w", w.name, err)
			}
			if is != w.was {
				return fmt.Errorf("the %s is another directory now", w.name)
			}
		}
	}
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
