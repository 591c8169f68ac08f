package daemon

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/desktop"
	"github.com/scopefs/scopefs/internal/oneshot"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/limit"
)

// The bounds of the commands that approvals.notify starts.
const (
	notifyTime = 10 * time.Second // for one to end
	maxNotify  = 4                // at the same time, and one for each agent
	maxUntold  = 16               // calls of one agent that wait for their command
)

// notifyApprovals runs the operator's command for each call that starts to need an approval, shows a notification of the
// desktop, and wakes the console's devices, until stop, which waits for the commands. No call waits for it.
func (d *Daemon) notifyApprovals() (stop func()) {
	command, bus := d.Settings.Approve.Notify, os.Getenv("DBUS_SESSION_BUS_ADDRESS")
	if shows := d.Settings.Approve.Desktop; shows != nil && !*shows {
		bus = ""
	}
	sender := d.pushes.sender
	if len(command) == 0 && bus == "" && sender == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	waits := make(chan approvals.Approval, 1)
	n := &notifier{desktop: waits, daemon: d, command: command, turns: tools.NewTurns(maxNotify, 1),
		agents: map[scope.ID]chan approvals.Approval{}}
	began := time.Now()
	n.working.Go(func() { n.watch(ctx, began) })
	if bus != "" {
		n.working.Go(func() { d.showApprovals(ctx, bus, waits) })
	}
	if sender != nil {
		n.working.Go(func() { sender.Run(ctx, d.waits) })
	}
	return func() { cancel(); n.working.Wait() }
}

// showEvery is the least time between two notifications of the desktop.
const showEvery = 5 * time.Second

// showApprovals shows one notification of the desktop: the last call that waits. It names the agent and, of a tool of
// scopefs, the tool; no text that an agent or a server chose.
func (d *Daemon) showApprovals(ctx context.Context, bus string, waits <-chan approvals.Approval) {
	shown := uint32(0)
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-waits:
			if now, err := d.Approvals.Get(p.ID); err != nil || now.State != approvals.Waits {
				continue
			}
			what := "a call"
			switch {
			case p.Kind == approvals.KindHost:
				what = "a connection"
			case d.Settings.Tools.Named(p.Tool).Name != "":
				what = "a call of " + p.Tool
			}
			id, err := desktop.Notify(ctx, bus, shown, "scopefs: "+string(p.Agent)+" waits", what+" needs your approval: scopefs approvals")
			if err != nil {
				d.Logger.Debug("no notification of the desktop", "err", err) // there may be no desktop
			}
			shown = id
		}
		select {
		case <-ctx.Done():
		case <-time.After(showEvery):
		}
	}
}

type notifier struct {
	daemon  *Daemon
	desktop chan approvals.Approval
	command []string
	turns   *limit.Queue
	working sync.WaitGroup
	agents  map[scope.ID]chan approvals.Approval // for watch alone
}

// watch passes each call on to a goroutine of its agent. An earlier daemon has told of those up to last.
func (n *notifier) watch(ctx context.Context, last time.Time) {
	for ctx.Err() == nil {
		changes, stop := n.daemon.Approvals.Watch()
		for open := true; open; {
			var c approvals.Update
			select {
			case <-ctx.Done():
				open = false
				continue
			case c, open = <-changes:
			}
			if p := c.Approval; open && c.Outcome == approvals.Waits && p.Asked.After(last) {
				last = p.Asked
				select {
				case n.desktop <- p:
				default: // one is to be shown
				}
				if sender := n.daemon.pushes.sender; sender != nil {
					sender.Wake()
				}
				if len(n.command) > 0 {
					n.pass(ctx, p)
				}
			}
		}
		stop()
	}
}

func (n *notifier) pass(ctx context.Context, p approvals.Approval) {
	calls := n.agents[p.Agent]
	if calls == nil {
		calls = make(chan approvals.Approval, maxUntold)
		n.agents[p.Agent] = calls
		n.working.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case p := <-calls:
					n.run(ctx, p)
				}
			}
		})
	}
	select {
	case calls <- p:
	default:
		n.daemon.Warnings.Warn(p.Agent, "approvals: notify was not run for a call: too many wait", "id", p.ID)
	}
}

// run runs the command once. What the agent wrote is on its standard input alone.
func (n *notifier) run(ctx context.Context, p approvals.Approval) {
	done, err := n.turns.Take(ctx, p.Agent)
	if err != nil {
		return
	}
	defer done()
	text, err := json.Marshal(struct {
		approvals.Approval
		Console string `json:"console,omitempty"` // the inbox
	}{p, n.daemon.page.inbox()})
	if err == nil {
		err = oneshot.Run(ctx, exec.Command(n.command[0], n.command[1:]...), append(text, '\n'), notifyTime)
	}
	if err != nil {
		n.daemon.Warnings.Warn(p.Agent, "approvals: notify has failed: run it by hand", "err", err)
	}
}
