package view

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/scopefs/scopefs/fs/fusedev"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/scope/beneath"
)

const (
	idleProbe = 20 * time.Millisecond // times the number of views: between two beats of an idle view
	scopeTime = time.Second           // between two checks of a scope's directory
)

var errEnded = errors.New("view process ended")

// probe returns an error when the view must be replaced: see [heart.Watch].
func (v *View) probe(ctx context.Context, p *served, beats *heart.Heart, conn fusedev.Connection) error {
	err := heart.Watch(ctx, heart.Process{PID: p.cmd.Process.Pid, Ended: p.ended}, beats, func() bool {
		waiting, err := conn.Waiting()
		return err != nil || waiting > 0
	}, v.host.idleProbe)
	switch {
	case err != nil:
		return fmt.Errorf("view %w", err)
	case ctx.Err() == nil:
		return errEnded
	}
	return nil
}

// idleProbe returns the time between two beats of an idle view.
func (h *Host) idleProbe() time.Duration {
	return max(time.Second, time.Duration(h.views.Load())*idleProbe)
}

// watchScope returns an error when the agent's directory has been moved or removed, or
// its file system unmounted.
func (v *View) watchScope(ctx context.Context, root *beneath.Root) error {
	was, err := identity(root)
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(scopeTime):
		}
		now, err := v.def.OpenRoot(v.host.Paths.Base)
		if err != nil {
			return fmt.Errorf("the scope is gone: %w", err)
		}
		is, err := identity(now)
		now.Close()
		if err != nil {
			return fmt.Errorf("the scope is gone: %w", err)
		}
		if is != was {
			return errors.New("the scope is another directory now")
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
