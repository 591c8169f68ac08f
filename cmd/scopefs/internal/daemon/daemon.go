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
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Options says what a daemon does.
type Options struct {
	Paths  config.Paths // complete
	Only   scope.ID     // mount this agent alone; "" is all that are defined
	Trace  bool         // tell the logger of every request of the kernel
	Logger *slog.Logger
}

// Daemon is one running daemon.
type Daemon struct {
	paths  config.Paths
	host   config.Host
	only   scope.ID
	trace  bool
	logger *slog.Logger
	root   bool // of the host
	log    *audit.Log
	lock   *os.File

	requests  sync.WaitGroup // those that change something
	reloading sync.Mutex     // one reload after the other
	loading   sync.Mutex     // likewise, so that what is read last holds

	sandboxMu sync.Mutex
	sandboxes *sandbox.Host // nil until it could be opened

	mu       sync.Mutex
	closing  bool
	defs     map[scope.ID]*scope.Definition
	bad      []error
	views    map[scope.ID]*view
	failed   map[scope.ID]error         // why an agent without a view has none
	turns    map[scope.ID]chan struct{} // see take
	sessions map[scope.ID]map[*sandbox.Session]string
}

// New takes the run directory, opens the log and loads the definitions. What an
// earlier daemon left mounted is taken down.
func New(opt Options) (*Daemon, error) {
	host, err := config.Load(opt.Paths)
	if err != nil {
		return nil, err
	}
	d := &Daemon{
		paths: opt.Paths, host: host, only: opt.Only, trace: opt.Trace, logger: opt.Logger, root: privileged(),
		views: map[scope.ID]*view{}, failed: map[scope.ID]error{}, turns: map[scope.ID]chan struct{}{},
		sessions: map[scope.ID]map[*sandbox.Session]string{},
	}
	if err := d.takeRun(); err != nil {
		return nil, err
	}
	if d.log, err = audit.Open(d.paths.Audit(), audit.Options{}); err != nil {
		d.lock.Close()
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	d.log.OnChange(d.tellViews)
	d.load()
	d.event(audit.Event{Event: audit.KindDaemon, Outcome: "started", PID: os.Getpid(), Path: d.paths.Base})
	return d, nil
}

// load reads the definitions. One that does not load any more stays as it was.
func (d *Daemon) load() {
	d.loading.Lock()
	defer d.loading.Unlock()
	defs, errs := scope.LoadDefinitions(d.paths.Base)
	d.mu.Lock()
	last, told := d.defs, d.bad
	for _, err := range errs {
		bad, ok := errors.AsType[*scope.DefinitionError](err)
		if !ok { // agents.d itself: of nothing in it is known that it has changed
			defs = maps.Clone(last)
			break
		}
		id := scope.ID(strings.TrimSuffix(bad.File, ".md"))
		if old := last[id]; old != nil {
			defs[id] = old
		}
	}
	d.defs, d.bad = defs, errs
	d.mu.Unlock()
	for _, err := range errs {
		if slices.ContainsFunc(told, func(e error) bool { return e.Error() == err.Error() }) {
			continue
		}
		d.logger.Error("definition", "err", err)
		d.event(audit.Event{Event: audit.KindAgent, Outcome: "not loaded", Detail: err.Error()})
	}
}

// event records what happened to an agent, a view, a sandbox or the daemon.
func (d *Daemon) event(e audit.Event) {
	if _, err := d.log.Append(context.Background(), e); err != nil {
		d.logger.Error("audit", "err", err)
	}
}

// tellViews tells every view whether the log can be written.
func (d *Daemon) tellViews(failure error) {
	if failure != nil {
		d.logger.Error("audit log cannot be written: changes are refused until it can", "err", failure)
	} else {
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

// Run mounts what is defined, answers on the control socket, and returns when
// ctx ends and everything is down. ready is called when agents can be used.
func (d *Daemon) Run(ctx context.Context, ready func()) error {
	defer d.close()
	l, err := d.listen()
	if err != nil {
		return err
	}
	server := &http.Server{Handler: d.handler(), ConnContext: peerContext, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	go d.sandboxHost() // meanwhile; who needs it hears of an error
	if err := d.upAll(ctx); err != nil {
		server.Close()
		return err
	}
	if d.only == "" {
		go d.watch(ctx)
	}
	ready()
	select {
	case <-ctx.Done():
	case err = <-served:
	}
	server.Close()
	return err
}

// upAll mounts what is defined. One agent's failure is told, and is not the
// others'; where only one is wanted it is an error.
func (d *Daemon) upAll(ctx context.Context) error {
	if d.only != "" {
		_, err := d.Up(ctx, d.only, "")
		return err
	}
	d.mu.Lock()
	ids := make([]scope.ID, 0, len(d.defs))
	for id := range d.defs {
		ids = append(ids, id)
	}
	d.mu.Unlock()
	slices.Sort(ids)
	for _, id := range ids {
		if _, err := d.Up(ctx, id, ""); err != nil {
			d.logger.Error("mount", "agent", id, "err", err)
		}
	}
	return ctx.Err()
}

// listen makes the control socket, for ourselves alone.
func (d *Daemon) listen() (net.Listener, error) {
	os.Remove(d.paths.Socket()) // of an earlier daemon; the lock is ours
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	l, err := net.Listen("unix", shortPath(d.paths.Socket()))
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return l, nil
}
