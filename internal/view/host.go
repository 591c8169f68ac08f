package view

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/holder"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/internal/liveness"
	"github.com/scopefs/scopefs/internal/pathwatch"
	"github.com/scopefs/scopefs/internal/placement"
	"github.com/scopefs/scopefs/internal/usage"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Host is shared by the views of all agents of a daemon.
type Host struct {
	account.Host
	Trace   bool // log each request of the kernel
	Log     *audit.Log
	Control fusemount.Control
	Holder  *holder.Holder
	Build   string         // version of the program
	Program beneath.FileID // of views: its file; two builds may have one version
	Grace   time.Duration  // how long views live on without a daemon; 0: they end with it

	Placement *placement.Set // nil: the daemon is in no fleet

	left  left
	again ledger.Again

	Quotas usage.Pages
	spools spools

	// Watcher watches the processes that serve mounts, and Moves the directories that they serve.
	Watcher liveness.Watcher
	Moves   pathwatch.Set
}

// ProgramFile identifies the file of the views' program.
func ProgramFile() (id beneath.FileID) {
	var st unix.Stat_t
	if f, err := child.Program(child.View); err == nil && unix.Fstat(int(f.Fd()), &st) == nil {
		id = beneath.FileID{Dev: st.Dev, Ino: st.Ino}
	}
	return id
}

// Agent is whose view it is.
type Agent interface {
	// Event records an event of the view itself.
	Event(e audit.Event)
	// RecordFile records a file operation of a client, after what before records. It waits for the agent's pace until
	// alive ends or hurry is closed.
	RecordFile(alive context.Context, hurry <-chan struct{}, e audit.Event, before func() error) error
	// Actor returns the session and the call for which a process changes files.
	Actor(pid int) history.Actor
	// Echo sends a request to the sandboxes that have the view, and returns their answers: see package echo. It takes a bounded time.
	Echo(ctx context.Context, v *View, e wire.Echo) ([]wire.EchoReply, error)
	// Ask asks the operator about an operation of a client. It waits for the decision until ctx ends.
	Ask(ctx context.Context, q Question) (Answer, error)
	// Spend takes the events' bytes from what the agent may write to the log, and returns what is left.
	Spend(events []audit.Event) (left float64)
	// Spools reports whether a view's allowed operations may reach the log under the name of its definition.
	Spools() bool
	// PrepareLimit makes a following Limit fast. It takes as long as that would. was is what KeepLimit of the last daemon has
	// returned; nil: nothing.
	PrepareLimit(def *agents.Definition, was *sandbox.KeptGroup)
	// KeepLimit returns the agent's control group, for the next daemon.
	KeepLimit(def *agents.Definition) *sandbox.KeptGroup
	// Limit moves the view's process to the agent's control group. The process is ready and serves no client yet:
	// what it needs to start does not count. outOfMemory reports later whether the kernel killed it because the
	// agent had no memory left.
	Limit(def *agents.Definition, pid int) (outOfMemory func() bool)
	// DropGroup removes the agent's control group if no process is left in it.
	DropGroup()
	// EndSandboxes kills the agent's sandboxes, whose mount is dead. wait returns when nothing of them is left.
	EndSandboxes() (wait func())
	// Unlocked returns when the locks are free that requests of the agent need: the daemon's answer to a view that
	// checks whether the daemon still runs.
	Unlocked()
}
