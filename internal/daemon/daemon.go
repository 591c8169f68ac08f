// Package daemon keeps agents' views mounted, runs their sandboxes, and writes
// what they decide to the log. It never opens a path inside a view.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Options says what a daemon does.
type Options struct {
	Paths  config.Paths // complete
	Only   scope.ID     // mount this agent alone; "" is all that are defined
	Logger *slog.Logger
}

// Daemon is one running daemon.
type Daemon struct {
	paths  config.Paths
	host   config.Host
	only   scope.ID
	logger *slog.Logger
	root   bool // of the host
	log    *audit.Log
	lock   *os.File

	requests sync.WaitGroup // those that change something

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
	host, err := config.Load(opt.Paths.Base)
	if err != nil {
		return nil, err
	}
	d := &Daemon{
		paths: opt.Paths, host: host, only: opt.Only, logger: opt.Logger, root: privileged(),
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

// takeRun makes the run directory ours: one daemon a directory.
func (d *Daemon) takeRun() error {
	for _, dir := range []string{d.paths.Run, d.paths.Views()} {
		// Agents' users pass through to their own mount point.
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("run directory: %w", err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(d.paths.Run, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return fmt.Errorf("a daemon is running already with --run %s", d.paths.Run)
	}
	d.lock = lock
	// Without links, as the kernel tells mount points.
	if d.paths.Run, err = filepath.EvalSymlinks(d.paths.Run); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	return d.unmountLeft()
}

// unmountLeft takes down the views that a killed daemon left: those below our
// run directory, and those that it had mounted elsewhere.
func (d *Daemon) unmountLeft() error {
	all, err := mounts()
	if err != nil {
		return err
	}
	places := d.places()
	for _, m := range slices.Backward(all) {
		id, ours := strings.CutPrefix(m.source, "scopefs:")
		if m.fsType != fsType || !ours {
			continue
		}
		if filepath.Dir(m.at) == d.paths.Views() || places[scope.ID(id)] == m.at {
			d.logger.Info("unmounting what an earlier daemon left", "at", m.at)
			if err := unix.Unmount(m.at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				return fmt.Errorf("unmount %q: %w", m.at, err)
			}
		}
	}
	return nil
}

// load reads the definitions. One that does not load any more stays as it was.
func (d *Daemon) load() {
	defs, errs := scope.LoadDefinitions(d.paths.Base)
	d.mu.Lock()
	last, told := d.defs, d.bad
	for _, err := range errs {
		var bad *scope.DefinitionError
		if errors.As(err, &bad) {
			id := scope.ID(strings.TrimSuffix(bad.File, ".md"))
			if old := last[id]; old != nil {
				defs[id] = old
			}
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

// enter counts a request in, so that close can wait for its last event.
func (d *Daemon) enter() (leave func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return nil, errClosing
	}
	d.requests.Add(1)
	return d.requests.Done, nil
}

var errClosing = errors.New("the daemon is ending")

// close ends sandboxes, then views, then the log.
func (d *Daemon) close() {
	d.mu.Lock()
	d.closing = true
	d.mu.Unlock()
	d.sandboxMu.Lock()
	host := d.sandboxes
	d.sandboxMu.Unlock()
	if host != nil {
		if err := host.Close(); err != nil {
			d.logger.Error("sandboxes", "err", err)
		}
	}
	var wg sync.WaitGroup
	for _, v := range d.allViews() {
		wg.Go(v.down)
	}
	wg.Wait()
	d.requests.Wait()
	d.event(audit.Event{Event: audit.KindDaemon, Outcome: "stopped", PID: os.Getpid()})
	if err := d.log.Close(); err != nil {
		d.logger.Error("audit", "err", err)
	}
	os.Remove(d.paths.Socket())
	d.lock.Close()
}

// RemoveRun removes a run directory that was made for one daemon, which has
// ended. It goes name by name: should something be mounted there still, nothing
// of that is touched.
func RemoveRun(p config.Paths) {
	for _, dir := range []string{p.Views(), p.Run} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if name := filepath.Join(dir, e.Name()); e.IsDir() {
				unix.Rmdir(name)
			} else {
				unix.Unlink(name)
			}
		}
		unix.Rmdir(dir)
	}
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
