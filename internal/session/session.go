// Package session serves an agent on its view: its sockets and their clients, its sandboxes, MCP servers and
// tasks, their network and their limits.
//
// Lock order, outermost first: client.starting, Agent.mu. Nobody takes another lock while holding client.mu, servers.mu,
// group.mu or one in Shared. Nobody holds the mu of two agents. The daemon may hold the lock of its registry while it takes
// Agent.mu; of Daemon, only what takes no lock is called while Agent.mu is held. Nothing is recorded, and
// no program or network is waited for, under any lock but client.starting: TestNoEffectUnderLock.
package session

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/changes"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/limit"
	"github.com/scopefs/scopefs/tools/mcp"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Agent is an agent as its sessions need it. It lasts as long as the daemon, also while no definition of it loads.
type Agent struct {
	*Shared
	Daemon
	id scope.ID

	changing   changes.Turns
	slots      *limit.Slots // of clients
	connecting *limit.Slots // taken while the client of HTTP requests starts: two would have two sandboxes
	paces      *ledger.Paces
	rates      *tools.Rates
	traffic    *limit.Rates          // of its sandboxes
	share      *limit.Share          // what its input takes of a processor: of clients, sandboxes and servers
	group      opened[sandbox.Group] // see groupOf

	channel    func() *audit.Channel // see Own
	unfinished file.Unfinished
	refusals   ledger.Refusals
	violations ledger.Violations // that were recorded
	tally      ledger.Tally
	watches    watches

	contexts limit.Budget // bytes of the contexts of clients' sessions
	inbox    *mcp.Inbox   // what its clients send
	webAsked atomic.Bool  // an HTTP request has come since the last webBusy

	mu       sync.Mutex
	closing  bool // the daemon ends
	sessions map[*sandbox.Session]*Sandbox
	socket   *socket // nil: the tools cannot be used
	clients  map[*client]struct{}
	web      *client  // the one client for all HTTP requests
	sick     []string // the errors of MCP servers that were logged last
}

// New returns an agent that has no socket.
func New(shared *Shared, daemon Daemon, own Own) *Agent {
	share := tools.NewShare()
	a := &Agent{
		Shared: shared, Daemon: daemon, id: own.ID, channel: own.Channel, unfinished: own.Unfinished,
		changing: changes.NewTurns(), slots: limit.NewSlots(maxClients), connecting: limit.NewSlots(1),
		rates:    tools.NewRates(own.Rates),
		traffic:  &limit.Rates{Store: own.Traffic},
		share:    share,
		inbox:    mcp.NewInbox(share),
		sessions: map[*sandbox.Session]*Sandbox{}, clients: map[*client]struct{}{},
	}
	a.paces = ledger.NewPaces(shared.Settings.Log.AgentDay, a.budgetUsed())
	return a
}

// ID returns the agent's id.
func (a *Agent) ID() scope.ID { return a.id }

// ErrClosing is the error of requests to a daemon that ends.
var ErrClosing = errors.New("the daemon is ending")

// ErrDown is the error of a mount, other than by the operator, of an agent that the operator
// has unmounted.
var ErrDown = errors.New("the operator has taken it down")

// Refuse makes the agent refuse new sockets and clients from now on.
func (a *Agent) Refuse() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closing = true
}

// Unlocked returns when the agent's lock is free.
func (a *Agent) Unlocked() {
	a.mu.Lock()
	defer a.mu.Unlock()
}

// RecordFile records a file operation of a client of the view: see view.Agent. It finds the call that the operation is
// for, and notes the view's refusal for the record of the call's end.
func (a *Agent) RecordFile(alive context.Context, hurry <-chan struct{}, e audit.Event, before func() error) error {
	byTool, from := false, origin{}
	if e.Verdict != audit.Allow {
		from = a.originOf(e.PID)
		e.Session, e.Parent, e.Call, e.Trace, e.Program, byTool = from.session, from.parent, from.call, from.trace, from.program, from.byTool
	}
	if e.Verdict != audit.Allow {
		of, told := a, e
		of, told.Path = a.keeper(e.Path)
		of.watches.refuse(from, told)
		if byTool {
			of.refusals.Add(told) // before the client has its answer
		}
	}
	if byTool {
		if a.violations.Has(e) {
			return nil
		}
	}
	select {
	case <-hurry: // a denial in a hurry costs nothing
	default:
		_ = a.paces.Wait(alive, hurry, e) // it is recorded all the same
	}
	if err := before(); err != nil {
		return err
	}
	if _, err := a.channel().Append(context.Background(), e); err != nil {
		return err
	}
	a.tally.Count(e, time.Now())
	if byTool {
		a.violations.Add(e)
	}
	return nil
}

// Spools implements view.Agent.
func (a *Agent) Spools() bool { return true }

// Spend takes the events' bytes from what the agent may write to the log: see view.Agent.
func (a *Agent) Spend(events []audit.Event) (left float64) {
	return a.paces.Spend(events...)
}
