package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/scopefs/scopefs/cmd/scopefs/internal/viewer"
	"github.com/scopefs/scopefs/fs/fusedev"
	"github.com/scopefs/scopefs/scope/beneath"
)

// How a view that does not serve is found. A client waits for the sum of the
// first two at most, where the process is stopped or dead-locked.
const (
	probeTime  = 400 * time.Millisecond // between two looks at a view
	answerTime = time.Second            // for its heart to answer
	starveTime = 10 * time.Second       // likewise, while it waits for a processor
	idleProbe  = 20 * time.Millisecond  // times the number of views: between two beats of an idle one
	scopeTime  = time.Second            // between two looks at a scope's directory
)

var errEnded = errors.New("view process ended")

// probe returns an error when the view's process is dead or does not answer. A
// view without requests is asked seldom, so that idle views cost next to nothing.
func (v *view) probe(ctx context.Context, p *served, heart *viewer.Heart, conn fusedev.Connection) error {
	for asked := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-p.ended:
			return errEnded
		case <-time.After(probeTime):
		}
		waiting, err := conn.Waiting()
		if busy := err != nil || waiting > 0; !busy && time.Since(asked) < v.d.idleProbe() {
			continue
		} else if busy && p.runs('Z', 'X') {
			return errors.New("view process was killed")
		}
		asked = time.Now()
		if heart.Alive(answerTime) || ctx.Err() != nil {
			continue
		}
		if p.runs('R') && heart.Alive(starveTime) { // it is slow, not dead: whoever waits gets an answer
			continue
		}
		return fmt.Errorf("view process does not answer within %v", answerTime)
	}
}

// idleProbe is how long a view without requests is left alone.
func (d *Daemon) idleProbe() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return max(time.Second, time.Duration(len(d.views))*idleProbe)
}

// runs reports whether the main thread of the process, or for R any thread, is
// in one of these states; proc_pid_stat(5).
func (p *served) runs(states ...byte) bool {
	select {
	case <-p.ended:
		return false // the pid may be another's
	default:
	}
	pattern := fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid)
	tasks, _ := filepath.Glob(pattern)
	for _, task := range tasks {
		if states[0] != 'R' && filepath.Base(filepath.Dir(task)) != fmt.Sprint(p.cmd.Process.Pid) {
			continue
		}
		text, err := os.ReadFile(task)
		if i := bytes.LastIndexByte(text, ')'); err == nil && i >= 0 && i+2 < len(text) && bytes.IndexByte(states, text[i+2]) >= 0 {
			return true
		}
	}
	return false
}

// responsive returns when the daemon's state can be used: its answer to a view
// that asks whether it still runs.
func (d *Daemon) responsive() {
	d.mu.Lock()
	defer d.mu.Unlock()
}

// watchScope returns an error when the agent's directory is not any more where
// it was: moved, removed, or its file system gone.
func (v *view) watchScope(ctx context.Context, root *beneath.Root) error {
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
		now, err := beneath.OpenRoot(v.d.paths.Base, v.def.Name.Dir())
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
