package session

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/outlive"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/bash"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Where a runner finds its tools.
const (
	taskSocket   = sandbox.Run + "/mcp.sock"
	taskPrograms = sandbox.Run + "/bin" // scopefs is there: scopefs mcp and scopefs call use the socket
)

// runnersTask is a task of a client's that the operator's runner does in box. It lives on when this daemon ends, as the sandbox of
// the client does: the runner, its sandbox and what it has connected to the socket wait until the client has returned to the next
// daemon, and resumes the call. A task on a branch, and a task that a task has delegated, end with this daemon.
type runnersTask struct {
	client  *client
	env     tools.Env // of the call
	member  *Agent
	owner   account.User // the member's
	work    work
	purpose Purpose

	socket *socket // with the member's tools
	box    *Sandbox
	lives  bool // when this daemon ends
}

// start starts the sandbox of the runner.
func (t *runnersTask) start(ctx context.Context) (err error) {
	c := t.client
	if t.socket, err = t.member.listen(c.agent.Paths.ToolSocket(runnerSocket+rand.Text()), t.owner, t.work); err != nil {
		return err
	}
	for _, b := range []struct{ from, to string }{{t.socket.name, taskSocket}, {"/proc/self/exe", taskPrograms + "/scopefs"}} {
		fd, err := unix.Open(b.from, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("show %s to a runner: %w", filepath.Base(b.to), err)
		}
		shown := os.NewFile(uintptr(fd), b.from)
		defer shown.Close()
		t.purpose.Binds = append(t.purpose.Binds, sandbox.Bind{File: shown, At: b.to})
	}
	if t.box, err = t.member.Start(ctx, t.purpose); err != nil {
		return err
	}
	if err = t.box.endsAlone(); err != nil || t.env.Kept == nil || t.work.held != nil || c.by != nil {
		return err
	}
	if own, err := c.sandbox(ctx); err == nil { // by which the client returns
		t.lives = own.place != nil
	}
	return nil
}

// resume continues with the sandbox that the last daemon has left.
func (t *runnersTask) resume(ctx context.Context) error {
	if t.box = t.client.task(t.env.Call); t.box == nil {
		return sandbox.ErrEnded
	}
	if len(t.env.Begun.Context) > 0 && t.work.context.Len() == 0 {
		return tools.Errorf(tools.Conflict, "the task had a context, which its client has not any more")
	}
	if err := t.box.resume(ctx, t.purpose); err != nil {
		return err
	}
	l, err := net.FileListener(t.box.Earlier.Last())
	if err == nil {
		t.socket = t.member.serve(l, t.owner, t.work)
	}
	return err
}

// record records that the member does the task, and the runner. ended records the runner's end.
func (t *runnersTask) record(ctx context.Context) (ended func(outcome string), err error) {
	c, p := t.client, t.purpose
	if was := t.box.Earlier; was != nil { // the last daemon has
		return func(outcome string) { was.RecordExit(t.member, c.agent.Paths.Audit(), outcome) }, nil
	}
	detail := "by " + string(c.agent.id)
	if set := t.work.held; set != nil {
		detail += ", " + set.target()
	}
	e := audit.Event{Session: t.box.Name, Parent: p.Parent, Chain: p.Chain, Target: p.Command, Trace: p.Trace.String()}
	begun := e
	begun.Event, begun.Agent, begun.Target = audit.KindAgent, string(t.member.id), ""
	begun.Outcome, begun.Detail = audit.OutcomeDelegated, detail
	t.member.Event(begun)
	if ended, err = t.member.RecordExec(ctx, e); err != nil || !t.lives { // it lives on only now: the next daemon may record the end
		return ended, err
	}
	listens, failed := t.socket.listener.(*net.UnixListener).File()
	if failed == nil { // else the task ends with this daemon
		_ = t.box.keep(nil, outlive.Sandbox{Name: t.box.Name, Parent: c.name, Command: p.Command, Task: p.Task}, listens)
		c.mu.Lock()
		c.tasks = append(c.tasks, t.box)
		c.mu.Unlock()
	}
	return ended, nil
}

// close ends the task's processes and its clients, and with them the tasks that they have delegated. err is that of the task.
func (t *runnersTask) close(err error) {
	c := t.client
	if t.box != nil {
		if !errors.Is(err, tools.ErrLeft) {
			t.box.End()
		}
		c.mu.Lock()
		c.tasks = slices.DeleteFunc(c.tasks, func(b *Sandbox) bool { return b == t.box })
		c.mu.Unlock()
	}
	if t.socket != nil {
		t.socket.close()
	}
}

// runner returns what makes the sandbox of a runner beside its Spec; nil: it is of none.
func (a *Agent) runner(t *outlive.Task) any {
	if t == nil {
		return nil
	}
	return []any{a.Settings.Runner, a.Settings.Tasks.Env}
}

// endsAlone makes the end of the sandbox recorded, whoever ends it, or leaves it to the next daemon.
func (b *Sandbox) endsAlone() error {
	leave, err := b.agent.Enter()
	if err == nil {
		go func() {
			defer leave()
			<-b.Done()
			b.End()
		}()
	}
	return err
}

// Claim reports whether the caller has to end a sandbox of Adopt. That of a task is ended by its caller's client, or, if that does
// not return, by the daemon.
func (b *Sandbox) Claim() bool {
	b.agent.left.Delete(b) // nobody else gets it
	return b.Earlier.Task == nil || !b.claimed.Swap(true)
}

// Claimed reports whether a client has the sandbox of a task.
func (b *Sandbox) Claimed() bool { return b.claimed.Load() }

// resumeTasks continues with the client's tasks. Their calls are resumed later, or not: see bash.Shell.Unclaimed.
func (c *client) resumeTasks(shell *bash.Shell) {
	c.agent.left.Range(func(key, _ any) bool {
		box := key.(*Sandbox)
		if box.Earlier.Task.Caller != c.agent.id || box.parent != c.name || !box.Claim() {
			return true
		}
		err := box.Earlier.Continue(shell, &box.commands, nil)
		if err == nil {
			err = box.endsAlone()
		}
		c.mu.Lock()
		c.tasks = append(c.tasks, box)
		c.mu.Unlock()
		if err != nil {
			box.Because = err
			box.End()
		}
		return true
	})
}

// task returns the sandbox of the task of a call; nil: there is none.
func (c *client) task(call string) *Sandbox {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, box := range c.tasks {
		if box.Earlier != nil && box.Earlier.Task.Call == call {
			return box
		}
	}
	return nil
}

// endTask ends the task of a call that nobody continues with, and hides the call's context.
func (c *client) endTask(call string) {
	c.contexts.End(call)
	if box := c.task(call); box != nil {
		box.End()
	}
}
