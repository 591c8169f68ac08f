package agent

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

// The times of the check that a view serves. A client waits for the sum of the first two
// at most when the process is stopped or in a deadlock.
const (
	probeTime  = 400 * time.Millisecond // between two checks of a view
	answerTime = time.Second            // for its heart to answer
	starveTime = 10 * time.Second       // likewise, while it waits for a processor
	idleProbe  = 20 * time.Millisecond  // times the number of views: between two requests to the heart of an idle view
	scopeTime  = time.Second            // between two checks of a scope's directory
)

var errEnded = errors.New("view process ended")

// probe returns an error when the view's process is dead or does not answer. It
// checks an idle view seldom, so that idle views cost next to nothing.
func (v *view) probe(ctx context.Context, p *served, heart *viewer.Heart, conn fusedev.Connection) error {
	for checked := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-p.ended:
			return errEnded
		case <-time.After(probeTime):
		}
		waiting, err := conn.Waiting()
		if busy := err != nil || waiting > 0; !busy && time.Since(checked) < v.agent.idleProbe() {
			continue
		} else if busy && p.runs('Z', 'X') {
			return errors.New("view process was killed")
		}
		checked = time.Now()
		if !v.answers(ctx, p, heart) {
			return fmt.Errorf("view process does not answer within %v", answerTime)
		}
		if s := v.agent.spool.Load(); s != nil {
			if err := s.drain(); errors.Is(err, errSpool) {
				return err
			}
		}
	}
}

// answers reports whether the view's heart answers. A view that waits for a processor is
// slow, not dead: its clients get an answer. A killed process runs as well until its
// threads have ended, so that each answerTime the states of the threads decide again.
func (v *view) answers(ctx context.Context, p *served, heart *viewer.Heart) bool {
	for end := time.Now().Add(answerTime + starveTime); ; {
		if heart.Alive(answerTime) || ctx.Err() != nil {
			return true
		}
		if !p.runs('R') || time.Now().After(end) {
			return false
		}
	}
}

// idleProbe returns the time between two requests to the heart of an idle view.
func (s *Shared) idleProbe() time.Duration {
	return max(time.Second, time.Duration(s.views.Load())*idleProbe)
}

// runs reports whether the main thread of the process, or for R any thread, is
// in one of these states; proc_pid_stat(5).
func (p *served) runs(states ...byte) bool {
	select {
	case <-p.ended:
		return false // the pid may be another's
	default:
	}
	pid := fmt.Sprint(p.cmd.Process.Pid)
	dir := filepath.Join("/proc", pid, "task")
	tasks, _ := os.ReadDir(dir)
	for _, task := range tasks {
		if states[0] != 'R' && task.Name() != pid {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, task.Name(), "stat"))
		if i := bytes.LastIndexByte(text, ')'); err == nil && i >= 0 && i+2 < len(text) && bytes.IndexByte(states, text[i+2]) >= 0 {
			return true
		}
	}
	return false
}

// responsive returns when the locks that requests of the agent need are free: the
// daemon's answer to a view that checks whether the daemon still runs.
func (a *Agent) responsive() {
	a.Registry.Responsive()
	a.mu.Lock()
	defer a.mu.Unlock()
}

// watchScope returns an error when the agent's directory has been moved or removed, or
// its file system unmounted.
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
		now, err := v.def.OpenRoot(v.agent.Paths.Base)
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
