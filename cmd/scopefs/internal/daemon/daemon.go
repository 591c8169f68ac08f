// Package daemon keeps agents' views mounted, runs their sandboxes, and writes
// what they decide to the log. It never opens a path inside a view.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/scopefs/scopefs/cmd/scopefs/internal/config"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/control"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/guard"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/logger"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/state"
	"github.com/scopefs/scopefs/fs/fusedev"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Options says what a daemon does.
type Options struct {
	Paths config.Paths // complete
	Only  scope.ID     // mount this agent alone; "" is all that are defined
	Trace bool         // tell the logger of every request of the kernel
	HTTP  string       // serve MCP at this loopback address; "" does not

	// Notify tells a service manager a state of sd_notify(3), and Watchdog is how long
	// it waits for the next WATCHDOG=1. Nil and 0: there is none.
	Notify   func(state string)
	Watchdog time.Duration

	// Headless: nobody can approve calls, so they are denied.
	Headless bool
	Version  string // told to MCP clients
	Logger   *slog.Logger
}

// Daemon is one running daemon.
type Daemon struct {
	paths  config.Paths
	host   agents.HostFile
	only   scope.ID
	trace  bool
	logger *slog.Logger

	warnings *warnings

	root bool // of the host
	log  *audit.Log
	lock *os.File // of the run directory
	base *os.File // likewise; nil: see lockBase

	unfinished *state.Unfinished
	mounts     mountTable
	groups     groups
	queue      *tools.Queue // of calls, agent by agent

	control fusedev.Control
	guard   *guard.Guard      // from Run on
	left    []*mountinfo.Info // what an earlier daemon had mounted

	notify func(state string) // never nil
	period time.Duration      // Options.Watchdog

	http, version string
	approvals     *tools.Approvals // nil: headless
	clientCount   atomic.Uint64

	requests  sync.WaitGroup // those that change something
	reloading sync.Mutex     // one reload after the other
	loading   sync.Mutex     // likewise, so that what is read last holds

	tasks   queues
	renames renames

	sandboxMu sync.Mutex
	sandboxes *sandbox.Host // nil until it could be opened

	mu       sync.Mutex
	closing  bool
	rules    *agents.Snapshot // never nil
	bad      []error          // what did not load of it
	views    map[scope.ID]*view
	starting map[scope.ID]bool           // waits for its first mount: see expect
	failed   map[scope.ID]error          // why an agent without a view has none
	granted  map[scope.ID]*agents.Grants // as of the last reload
	turns    map[scope.ID]chan struct{}  // see take
	sessions map[scope.ID]map[*sandbox.Session]string
	doors    map[scope.ID]*door
	clients  map[scope.ID]map[*client]struct{}
	slots    map[scope.ID]chan struct{} // see slotsOf
	rates    map[scope.ID]*tools.Rates
	paces    map[scope.ID]*paces
	sick     map[scope.ID][]string // what was last told of agents' MCP servers
	web      *httpFace             // nil: none
}

// New takes the run directory, opens the log and loads the definitions. What an
// earlier daemon left mounted is taken down.
func New(opt Options) (*Daemon, error) {
	host, err := config.Load(opt.Paths, hostChecks())
	if err != nil {
		return nil, err
	}
	if err := prepare(opt.Paths); err != nil {
		return nil, err
	}
	d := &Daemon{
		queue: tools.NewQueue(),
		paths: opt.Paths, host: host, only: opt.Only, trace: opt.Trace, logger: opt.Logger, root: privileged(),
		rules: agents.Resume(state.Seen(opt.Paths.State)), views: map[scope.ID]*view{}, starting: map[scope.ID]bool{}, failed: map[scope.ID]error{}, turns: map[scope.ID]chan struct{}{},
		granted: map[scope.ID]*agents.Grants{}, sessions: map[scope.ID]map[*sandbox.Session]string{}, doors: map[scope.ID]*door{},
		clients: map[scope.ID]map[*client]struct{}{}, rates: map[scope.ID]*tools.Rates{},
		slots: map[scope.ID]chan struct{}{}, paces: map[scope.ID]*paces{}, sick: map[scope.ID][]string{}, http: opt.HTTP, version: opt.Version,
		warnings:   newWarnings(opt.Logger),
		notify:     opt.Notify,
		period:     opt.Watchdog,
		unfinished: state.NewUnfinished(opt.Paths.State),
	}
	if d.notify == nil {
		d.notify = func(string) {}
	}
	d.extend()
	d.control = fusedev.OpenControl()
	if err := d.takeRun(); err != nil {
		return nil, err
	}
	if !opt.Headless {
		if err := d.loadApprovals(); err != nil {
			d.lock.Close()
			return nil, err
		}
	}
	if d.log, err = d.openLog(); err != nil {
		d.lock.Close()
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	d.log.OnChange(d.tellViews)
	d.extend()
	d.load()
	for id, agent := range d.rules.Agents {
		d.granted[id] = agent.Grants
	}
	d.event(audit.Event{Event: audit.KindDaemon, Outcome: "started", PID: os.Getpid(), Path: d.paths.Base})
	return d, nil
}

// hostChecks say what is wrong with scopefs.yaml on this host.
func hostChecks() agents.HostChecks {
	return agents.HostChecks{Expose: sandbox.Exposable, Runner: func(h agents.HostFile) error {
		return sandbox.Runnable(h.Runner[0], h.Expose, h.Env)
	}}
}

// event records what happened to an agent, a view, a sandbox or the daemon.
func (d *Daemon) event(e audit.Event) {
	if _, err := d.log.Append(context.Background(), e); err != nil {
		d.logger.Error("audit", "err", err)
	}
}

// openLog opens the log, which a process of its own writes.
func (d *Daemon) openLog() (*audit.Log, error) {
	stderr := &logWriter{logger: d.logger.With("process", logger.Name)}
	start := func() (io.ReadWriteCloser, error) { return logger.Start(stderr) }
	return audit.Start(start, d.paths.Audit(), audit.Options{
		Notice: d.noticeLog, KeepAge: d.host.Log.Keep, KeepBytes: d.host.Log.Size,
	})
}

// noticeLog shows the operator what the log records about itself.
func (d *Daemon) noticeLog(e audit.Event) {
	d.logger.Warn("audit log", "outcome", e.Outcome, "detail", e.Detail)
}

// quiet is a logger for libraries that tell of every message.
func (d *Daemon) quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// tellViews tells every view whether the log can be written.
func (d *Daemon) tellViews(failure error) {
	if failure != nil {
		d.logger.Error("audit log cannot be written: changes are refused until it can", "err", failure)
		d.notify("STATUS=the audit log cannot be written, changes are refused")
	} else {
		d.notify("STATUS=the audit log can be written again")
		d.logger.Info("audit log can be written again")
	}
	for _, v := range d.allViews() {
		v.mu.Lock()
		w := v.wire
		v.mu.Unlock()
		if w != nil {
			_ = v.tellLog(w)
		}
	}
}

func (d *Daemon) allViews() []*view {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*view, 0, len(d.views))
	for _, v := range d.views {
		all = append(all, v)
	}
	return all
}

// Run answers on the control socket, mounts what is defined, and returns when ctx
// ends and everything is down. It calls ready when requests are answered; views
// that are not mounted by then are starting, and who needs one waits for it. With
// Options.Only it calls ready when that agent is mounted.
func (d *Daemon) Run(ctx context.Context, ready func()) error {
	defer d.close()
	var err error
	d.guard, err = guard.Start(func(err error) {
		d.logger.Error("no guard: should the daemon be killed, programs may wait for their views until it is started again", "err", err)
	})
	if err != nil {
		return err
	}
	d.removeTaskDoors()
	l, err := control.Listen(d.paths.Socket())
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	server := &http.Server{Handler: d.handler(), ConnContext: peerContext, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	defer server.Close()
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	go func() { // meanwhile
		if _, err := d.sandboxHost(); err != nil && !errors.Is(err, errClosing) && d.only == "" { // else who needs it hears of it
			d.logger.Error("no sandbox can be made", "err", err)
		}
	}()
	if d.http != "" {
		wait, err := d.serveHTTP(ctx, d.http)
		if err != nil {
			return err
		}
		defer wait()
	}
	if d.only != "" {
		if _, err := d.Up(ctx, d.only, ""); err != nil {
			return err
		}
	} else {
		d.mu.Lock()
		ids := slices.Sorted(maps.Keys(d.rules.Agents))
		d.mu.Unlock()
		ids = d.expect(ids)
		mounted := &progress{d: d, what: "views mounted", all: len(ids)}
		leave, err := d.enter() // close waits for us
		if err != nil {
			return err
		}
		go func() {
			defer leave()
			d.mountExpected(ctx, ids, func(id scope.ID, err error) {
				if err != nil {
					d.logger.Error("mount", "agent", id, "err", err)
				}
				mounted.step()
			})
			d.unmountLeft()
		}()
		go d.watch(ctx)
	}
	if d.period > 0 {
		go d.watchdog(ctx, d.period)
	}
	ready()
	d.logger.Info("the daemon answers requests", "base", d.paths.Base, "run", d.paths.Run)
	select {
	case <-ctx.Done():
	case err = <-served:
	}
	return err
}
