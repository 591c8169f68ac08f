// Package daemon keeps agents' views mounted, runs their sandboxes, and writes
// what they decide to the log. It never opens a path inside a view.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/claim"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/console"
	"github.com/scopefs/scopefs/internal/fleet"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/internal/metrics"
	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/internal/outlive"
	"github.com/scopefs/scopefs/internal/placement"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/internal/stores"
	"github.com/scopefs/scopefs/internal/streams"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/limit"
	"github.com/scopefs/scopefs/tools/mcp"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Options says what a daemon does.
type Options struct {
	Paths config.Paths // complete
	Only  scope.ID     // mount this agent alone; "" is all that are defined
	Trace bool         // log each request of the kernel

	Unmounted bool          // with Only: a request mounts it
	HTTP      string        // serve MCP at this loopback address, too; "" does not
	Idle      time.Duration // end when there has been no session for so long; 0: never

	HTTPSocket net.Listener // in place of HTTP, a socket of the service manager; nil: none

	Metrics string          // serve metrics at this loopback address, too; "" does not
	Console console.Options // serve the web page there; zero: nowhere

	// Notify sends a service manager a state of sd_notify(3). Watchdog is how long the
	// service manager waits for the next WATCHDOG=1. Nil and 0: there is none.
	Notify   func(state string)
	Watchdog time.Duration

	// Headless: no operator looks for what waits. Without a run that attends, calls that need an approval are denied.
	Headless bool
	Version  string // sent to MCP clients
	Logger   *slog.Logger
}

// Daemon is one running daemon. It embeds the state that its agents share.
//
// Lock order: top.mu, mu, then the locks of an agent (see package agent). A reload holds
// reloading, then loading.
type Daemon struct {
	agent.Shared
	users users

	runs    runs
	stopped chan struct{} // closed when scopefs daemon --stop requests the end
	stop    func()        // closes stopped

	only      scope.ID // mount this agent alone; "": all that are defined
	unmounted bool     // see Options

	lock      *os.File          // of the run directory
	claimed   *claim.Claim      // of the state; nil: none
	base      *os.File          // of the base directory; nil: see lockBase
	left      []*mountinfo.Info // mounts of an earlier daemon
	points    []os.DirEntry     // mount points of an earlier daemon
	http      string
	inherited net.Listener // see Options.HTTPSocket
	tokens    *tokens
	url       atomic.Pointer[string] // of MCP on the loopback interface; nil: it is not served
	notify    func(state string)     // never nil
	period    time.Duration          // Options.Watchdog
	idle      time.Duration          // Options.Idle
	stamp     string                 // of the settings that hold
	end       func(error)            // ends Run, with the reason
	requests  sync.WaitGroup         // in flight, of those that change something
	reloads   sync.RWMutex           // held for reading by each Reload
	reloading sync.Mutex             // one reload after the other
	// likewise, so that the definitions read last hold; clients that start wait for it: nothing is recorded under it
	loading   sync.Mutex
	flags     map[scope.ID]flagged // that hold now; guarded by loading
	leases    leases
	loaded    atomic.Pointer[loaded]
	volumes   *limit.Queue  // one request for the volumes of an agent after the other
	bounded   sync.Once     // closes limited
	limited   chan struct{} // closed once an agent has a limit of its disk
	top       top
	counted   metrics.Set
	metrics   string // address; "": the control socket alone
	console   console.Options
	page      page
	listening listening
	pushes    pushes
	looking   chan struct{} // see look
	streams   atomic.Pointer[streams.Set]
	node      atomic.Pointer[fleet.Node] // nil: the daemon is of no fleet

	stopStreams func()   // nil: they were not started
	anchored    sync.Map // how far anchors are, by name: api.Anchor

	mu      sync.Mutex
	closing bool
	entered int                       // requests in flight
	agents  map[scope.ID]*agent.Agent // each that a definition has loaded of
}

// New takes the run directory, opens the log and loads the definitions. It aborts
// the views that an earlier daemon left mounted.
func New(opt Options) (*Daemon, error) {
	child.Open()
	go reserveDescriptors()
	process, unused := firstLogger(opt.Logger) // while the rest is read
	defer unused()
	go hosts.BuiltinPresets() // likewise
	stamp := opt.Paths.SettingsStamp()
	settings, err := config.Load(opt.Paths, hostChecks())
	if err != nil {
		return nil, err
	}
	if err := prepare(opt.Paths); err != nil {
		return nil, err
	}
	d := &Daemon{
		Shared: agent.Shared{
			Views: view.Host{
				Host:  account.Host{Paths: opt.Paths, Root: mount.Privileged(), Private: opt.Only != "", Expose: settings.Expose, Logger: opt.Logger},
				Trace: opt.Trace, Control: fusemount.OpenControl(), Build: opt.Version, Program: view.ProgramFile(),
			},
			Shared: session.Shared{
				Settings: settings, Version: opt.Version, Soon: opt.Only != "" || opt.Idle > 0,
				Queue: tools.NewQueue(), Examiners: limit.NewSlots(tools.MaxExaminers), Encoders: limit.NewSlots(mcp.MaxEncoders),
				Warnings: ledger.NewWarnings(opt.Logger),
			},
			Unfinished: state.NewUnfinished(opt.Paths.State),
		},
		only: opt.Only, unmounted: opt.Unmounted, http: opt.HTTP, inherited: opt.HTTPSocket, metrics: opt.Metrics, console: opt.Console,
		notify: opt.Notify, period: opt.Watchdog,
		idle: opt.Idle, stamp: stamp, agents: map[scope.ID]*agent.Agent{}, flags: map[scope.ID]flagged{},
		looking: make(chan struct{}, 1), limited: make(chan struct{}),
		volumes: limit.NewQueue(0, 1, time.Minute),
	}
	d.Host, d.Control, d.Watcher = &d.Views.Host, d.Views.Control, &d.Views.Watcher
	d.tokens = newTokens(opt.Paths.State, d.Event)
	if d.lasting() {
		d.Grace, d.Views.Grace = settings.Grace, settings.Grace
	}
	d.stopped, d.runs.settled = make(chan struct{}), make(chan struct{})
	d.stop = sync.OnceFunc(func() { close(d.stopped) })
	d.Registry, d.Shared.Definitions, d.Returned = d, d.Definitions, d.returnedTo
	d.ReturnedWeb = d.returnedWeb
	own := stores.Host{Exec: d.execStore, Root: d.Root, Disk: &d.Views.Quotas, Stderr: &view.LogWriter{Logger: opt.Logger, Name: "drivers"}}
	if d.Root { // of an ordinary user's daemon: himself
		own.User = d.UserOf
	}
	d.Stores = stores.New(settings.Stores, opt.Paths.State, own)
	d.Stores.OnDeclare = func() { each(d.all(), (*agent.Agent).DeclareActivities) }
	d.loaded.Store(&loaded{Snapshot: agents.Resume(state.Seen(opt.Paths.State))})
	if d.notify == nil {
		d.notify = func(string) {}
	}
	d.extend()
	if err := d.takeRun(); err != nil {
		return nil, err
	}
	var kept []approvals.Approval
	var lost []audit.Event
	err = os.MkdirAll(opt.Paths.State, 0o700) // what follows makes files there side by side
	if err == nil {
		err = d.claimState()
	}
	if f := settings.Fleet; err == nil && f.Name != "" && d.only == "" {
		d.Views.Placement, err = placement.New(f.Name, d.Paths.State)
	}
	if err == nil {
		kept, lost, err = d.loadApprovals(opt.Headless)
	}
	if err != nil {
		d.Holder.Leave()
		d.lock.Close()
		return nil, err
	}
	go func() { _ = d.OpenSandboxes() }() // while the log is opened; Run logs the error
	var before, now *loaded
	var loading sync.WaitGroup
	loading.Go(func() { before, now = d.replace("") })
	d.Log, err = d.openLog(process)
	d.Views.Log = d.Log
	loading.Wait()
	if err != nil {
		_ = d.CloseSandboxes() // the log's error counts
		d.Holder.Leave()
		d.lock.Close()
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	for _, e := range lost {
		d.Event(e)
	}
	d.Approvals.Resume(kept...)
	d.Log.OnChange(d.logChanged)
	d.extend()
	d.replaced(before, now)
	last, seen := before.Seen(), now.Seen()
	for _, file := range slices.Sorted(maps.Keys(seen)) { // no daemon has recorded who changed them
		if old := last[file]; old != "" && old != seen[file] {
			d.Event(audit.Event{Event: audit.KindAgent, Outcome: "definition changed", Path: file,
				Detail: "since the last daemon, to SHA-256 " + seen[file]})
		}
	}
	for id, def := range d.loaded.Load().Agents {
		d.agents[id].Grant(def.Grants)
	}
	d.Event(audit.Event{Event: audit.KindDaemon, Outcome: "started", PID: os.Getpid(), Path: d.Paths.Base})
	return d, nil
}

// execStore starts the command of a store's program: see session.Shared.
func (d *Daemon) execStore(ctx context.Context, store string, p *config.StoreProgram, c sandbox.Command) (*sandbox.Process, error) {
	leave, err := d.Enter() // the log is open until the end is recorded
	if err != nil {
		return nil, err
	}
	process, err := d.ExecStore(ctx, store, p, c, leave)
	if err != nil {
		leave()
	}
	return process, err
}

// hostChecks returns the checks of scopefs.yaml that need this host.
func hostChecks() config.Checks {
	return config.Checks{Tools: session.Tools(), Stores: session.StoreTools(stores.Known), Expose: sandbox.Exposable,
		Runner: func(h config.Settings) error { return sandbox.Runnable(h.Runner[0], h.Expose, h.Env) }}
}

// openLog opens the log that a process writes.
func (d *Daemon) openLog(process func() (audit.Process, error)) (*audit.Log, error) {
	return audit.Start(process, d.Paths.Audit(), audit.Options{
		// The operator sees what the log records about itself.
		Notice:   func(e audit.Event) { d.Logger.Warn("audit log", "outcome", e.Outcome, "detail", e.Detail) },
		UID:      account.HostUID,
		Recorded: d.counted.Count,
		KeepAge:  d.Settings.Log.Keep, KeepBytes: d.Settings.Log.Size, Continued: outlive.Calls(d.runs.left),
		ChannelDay: d.Settings.Log.AgentDay, // which ledger.Paces keep an agent below
	})
}

// logChanged logs whether the log can be written, and sends it to every view.
func (d *Daemon) logChanged(failure error) {
	if failure != nil {
		d.Logger.Error("audit log cannot be written: changes are refused until it can", "err", failure)
		d.notify("STATUS=the audit log cannot be written, changes are refused")
	} else {
		d.notify("STATUS=the audit log can be written again")
		d.Logger.Info("audit log can be written again")
	}
	each(d.all(), (*agent.Agent).UpdateLog)
	d.UpdateTaskLogs()
}

// checkTimeout bounds the tries of bubblewrap at the daemon's start, which take 60 ms.
const checkTimeout = 10 * time.Second

// Run answers on the control socket, mounts the agents that are defined, and returns when
// ctx has ended and every view is unmounted. It calls ready when requests are answered;
// views that are not mounted by then are starting, and requests wait for them. With
// Options.Only it calls ready when that agent is mounted.
func (d *Daemon) Run(ctx context.Context, ready func()) error {
	defer d.close()
	ctx, d.end = context.WithCancelCause(ctx)
	defer d.end(nil)
	d.runs.over = ctx.Done()
	go func() {
		select {
		case <-d.stopped:
			d.end(nil)
		case <-ctx.Done():
		}
	}()
	go d.watchQuotas(ctx)
	go d.Stores.Measure(ctx)
	d.RemoveLeftTasks(ctx)
	recovering, recovered := context.WithCancel(ctx)
	defer d.Views.RecoverSpools(recovering)()
	defer recovered()
	if err := d.openUsers(ctx); err != nil {
		return err
	}
	defer d.users.close()
	defer d.openPushes()()
	var expected []*agent.Agent
	if d.only == "" { // before the first request, or an agent that is to come looks like one that is down
		expected = d.expect(slices.Sorted(maps.Keys(d.loaded.Load().Agents)))
	}
	h, closeWeb, err := d.openHTTP() // likewise: a request may open an agent's socket
	if err != nil {
		return err
	}
	defer closeWeb()
	l, err := api.Listen(d.Paths.Socket())
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	var unanswered sync.Map // connections
	server := &http.Server{Handler: d.handler(ctx), ConnContext: api.WithPeer, ReadHeaderTimeout: 10 * time.Second,
		ConnState: func(c net.Conn, s http.ConnState) {
			if s == http.StateNew || s == http.StateActive {
				unanswered.Store(c, nil)
			} else {
				unanswered.Delete(c)
			}
		},
		BaseContext: func(net.Listener) context.Context { return ctx }}
	defer server.Close()
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	var checking sync.WaitGroup
	defer checking.Wait()
	checking.Go(func() { // meanwhile
		err := d.OpenSandboxes()
		if d.Soon {
			return // the request that needs a sandbox returns the error
		}
		if err == nil {
			// Not ctx: a bwrap that is killed may leave a child that waits forever.
			whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
			defer cancel()
			if err = sandbox.Check(whole, sandbox.Config{}); err == nil {
				if flaw := sandbox.Flaw(whole, sandbox.Config{}); flaw != "" {
					d.Logger.Info(flaw)
				}
			}
		}
		if err != nil && !errors.Is(err, session.ErrClosing) {
			d.Logger.Error("no sandbox can be made", "err", err)
		}
	})
	if listen, err := d.listenHTTP(); err != nil {
		return err
	} else if listen != nil {
		defer d.serveAt(ctx, "http", func() (func(), error) { return h.serve(listen) })()
	}
	if d.metrics != "" {
		defer d.serveAt(ctx, "metrics", func() (func(), error) { return d.serveMetrics(d.metrics) })()
	}
	if d.console.Listen != "" {
		defer d.serveAt(ctx, "console", func() (func(), error) { return d.serveConsole(ctx, d.console) })()
	}
	if d.only != "" {
		a, err := d.Agent(d.only)
		switch {
		case d.unmounted: // who asks for the agent gets the error
			err = nil
		case err == nil:
			_, err = a.Up(ctx, "")
		}
		if err != nil {
			return err
		}
	} else {
		d.openExpected(expected)
		expected = d.takeOver(ctx, expected)
		mounted := &progress{d: d, what: "views mounted", all: len(expected)}
		leave, err := d.Enter() // close waits for us
		if err != nil {
			return err
		}
		go func() {
			defer leave()
			d.mountExpected(ctx, expected, func(id scope.ID, err error) {
				if err != nil {
					d.Logger.Error("mount", "agent", id, "err", err)
				}
				mounted.step()
			})
			d.reloads.Lock() // or the mount point of an agent that a reload adds could go
			d.unmountLeft()
			d.reloads.Unlock()
		}()
		go d.watch(ctx)
		go d.mountAppeared(ctx)
	}
	defer d.notifyApprovals()()
	defer d.within(outsideTime, "anchors", d.anchorHeads())()
	d.stopStreams = d.within(outsideTime, "streams", d.startStreams())
	if d.period > 0 {
		go d.watchdog(ctx, d.period)
	}
	if d.idle > 0 {
		go d.endIdle(ctx)
	}
	ready()
	d.Logger.Info("the daemon answers requests", "base", d.Paths.Base, "run", d.Paths.Run)
	select {
	case <-ctx.Done():
		d.HandOver.Store(d.Grace > 0 && errors.Is(context.Cause(ctx), ErrHandOver))
		if errors.Is(context.Cause(ctx), errUnused) {
			d.answerLast(context.WithoutCancel(ctx), server, &unanswered)
		}
	case err = <-served:
	}
	return err
}
