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

// A view is probed: the daemon sends beats to its heart, and looks at its process when a
// beat has no response. [heart.Evidence] decides. A client waits for three probeTimes at most when
// the process is stopped or deadlocked.
const (
	probeTime = heart.ProbeTime       // between two looks at a view
	idleProbe = 20 * time.Millisecond // times the number of views: between two beats of an idle view
	scopeTime = time.Second           // between two checks of a scope's directory
)

var errEnded = errors.New("view process ended")

// probe returns an error when the view must be replaced: see [heart.Evidence]. It sends few beats
// to an idle view, so that idle views cost next to nothing.
func (v *View) probe(ctx context.Context, p *served, beats *heart.Heart, conn fusedev.Connection) error {
	var since heart.Evidence
	process := heart.Process{PID: p.cmd.Process.Pid, Gone: p.gone}
	began := time.Duration(0) // the process's processor time at the beat
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-p.ended:
			return errEnded
		case <-time.After(probeTime):
		}
		waiting, err := conn.Waiting()
		busy := err != nil || waiting > 0
		if silent := beats.Silence() > 0; silent || busy && process.Dying() {
			since.Add(process, began)
			since.Answered = silent && beats.Silence() == 0 // it may have answered, and slept, before the look
			if why := since.Verdict(); why != "" {
				return errors.New("view " + why)
			}
			if silent && !since.Answered {
				continue
			}
		}
		if since = (heart.Evidence{}); busy || time.Since(last) >= v.host.idleProbe() {
			last, began = time.Now(), process.Spent()
			beats.Beat()
		}
	}
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
