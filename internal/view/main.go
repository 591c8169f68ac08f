// Package view keeps an agent's view mounted, and is the process that serves it: both ends of one protocol.
//
// The daemon's end starts the process with the descriptors below, records its events, and starts another when it dies. The
// process confines itself before it serves the first request, and exits when the daemon exits.
//
// Lock order of the daemon's end, outermost first: View.ruling, View.mu. Nothing is recorded under a lock but spool.mu.
package view

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Name is the argv[0] of a view process.
const Name = "scopefs-view"

// The descriptors that the daemon passes to a view process.
const (
	RootFD  = 3 + iota // the scope's directory, a detached mount: see beneath.Root.Detach
	FuseFD             // /dev/fuse, mounted
	WireFD             // socket pair to the daemon
	HeartFD            // non-blocking socket pair to the daemon: see heart.Heart
	StatFD             // the daemon's proc_pid_stat(5)
	SpoolFD            // with Config.Spool: a file in memory, append-only: see spool
)

// Main runs the view process and returns its exit status.
func Main() int {
	conn := os.NewFile(WireFD, "daemon")
	wire := NewWire(conn, MaxToView)
	if err := run(wire); err != nil {
		_ = wire.Send(FromView{Failed: err.Error()})
		return 1
	}
	return 0
}

func run(wire *Wire) error {
	var first ToView
	if err := wire.Receive(&first); err != nil {
		return fmt.Errorf("receive configuration: %w", err)
	}
	cfg := first.Config
	if cfg == nil {
		return errors.New("the first message is not a configuration")
	}
	policy, err := scope.Compile(cfg.Policy)
	if err != nil {
		return err
	}
	syscall.Umask(0) // each request carries its own umask
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	var watch *beneath.Watch
	if cfg.Watch {
		if watch, err = beneath.NewWatch(); err != nil {
			logger.Warn("changes by other processes become visible only after the attribute timeout", "err", err, "time", cfg.Timeout)
		}
	}
	cfg.Limits.Handles = fs.HandlesWithin(cfg.Limits.Handles)
	var owner *fs.Owner
	if cfg.Sole {
		owner = &fs.Owner{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	}
	var spoolFile *os.File
	if cfg.Spool {
		spoolFile = os.NewFile(SpoolFD, "spool") // now: the filter denies fcntl(2) on it
	}
	measures, err := Confine(RootFD, cfg.Passthrough, cfg.Caller, cfg.Spool)
	if err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	l := &daemonLink{wire: wire, heart: heart.NewHeart(os.NewFile(HeartFD, "heart")), calls: peer.NewCalls[ToView](0)}
	if spoolFile != nil {
		l.spool = newSpoolWriter(spoolFile, l.drain)
		go l.spool.run(context.Background()) // until the process ends
	}
	opt := fs.Options{
		Policy: policy, Record: cfg.Record, Recorder: l, Timeout: cfg.Timeout,
		Passthrough: cfg.Passthrough, Mediated: cfg.Mediated,
		Watch: watch, Shared: cfg.Shared, Owner: owner, XAttrs: cfg.XAttrs, Trace: cfg.Trace, Spin: cfg.Spin, Logger: logger, Limits: cfg.Limits,
	}
	if cfg.Caller {
		opt.Groups = l.groups
	}
	root, err := beneath.NewDetached(RootFD)
	if err != nil {
		return err
	}
	root.Shown = cfg.Shown
	view, err := fs.New(root, FuseFD, opt)
	if err != nil {
		return err
	}
	debug.FreeOSMemory() // memory used only during the start
	go l.heart.Serve(view.Responsive)
	if err := wire.Send(FromView{Ready: measures}); err != nil {
		return err
	}
	go func() {
		// Without a daemon the view cannot record, so it must not serve.
		l.listen(view)
		os.Exit(0)
	}()
	return view.Serve()
}

// daemonLink is the view's connection to the daemon.
type daemonLink struct {
	wire  *Wire
	heart *heart.Heart

	calls *peer.Calls[ToView]
	spool *spoolWriter // nil: every event is sent

	mu      sync.Mutex
	failure error // why the log cannot be written
}

var _ fs.Recorder = (*daemonLink)(nil)

// Record returns once the daemon has written the event, or once it is in the spool.
func (l *daemonLink) Record(_ context.Context, e audit.Event) error {
	if l.Err() == nil {
		if recorded, err := l.spool.record(e); recorded || err != nil {
			return err
		}
	}
	msg := FromView{Event: &e, Path: cut(e.Path), Target: cut(e.Target)}
	e.Path, e.Target = "", ""
	reply, err := l.request(msg)
	if l.spool != nil {
		l.spool.use.Store(reply.Spool && err == nil)
	}
	return err
}

// drain is the drainFunc of the spool.
func (l *daemonLink) drain(reset bool) (use, answered bool, err error) {
	reply, err := l.request(FromView{Drain: true, Reset: reset})
	return reply.Spool, reply.ID != 0, err
}

// cut returns the two ends of a long string, more than the log keeps. The
// length of a path must not decide whether an event can be recorded.
func cut(s string) []byte {
	const end = 8 << 10
	if len(s) <= 2*end {
		return []byte(s)
	}
	return []byte(s[:end] + "..." + s[len(s)-end:])
}

// Err returns why the log cannot be written, or nil.
func (l *daemonLink) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

// groups requests a process's groups from the daemon, which can read /proc.
func (l *daemonLink) groups(pid uint32) ([]uint32, error) {
	reply, err := l.request(FromView{Groups: pid})
	return reply.Groups, err
}

// request sends a message and waits for the response. It returns an error if the
// daemon's heartbeat stops.
func (l *daemonLink) request(msg FromView) (ToView, error) {
	call, err := l.calls.Begin(context.Background())
	if err != nil {
		return ToView{}, err
	}
	defer call.End()
	msg.ID = call.ID
	if err := l.wire.Send(msg); err != nil {
		return ToView{}, err
	}
	for wait := doubtTime; ; wait = answerTime {
		select {
		case reply := <-call.Reply:
			if reply.Error != "" {
				return reply, errors.New(reply.Error)
			}
			return reply, nil
		case <-time.After(wait): // the daemon may throttle, wait for a slow disk or a processor, or be stopped
			silent := l.heart.Silence()
			if silent >= answerTime && l.stopped() || silent >= patience {
				return ToView{}, errors.New("the daemon does not respond")
			}
			l.heart.Beat()
		}
	}
}

const (
	doubtTime  = time.Second            // wait for a response before the first beat
	answerTime = 500 * time.Millisecond // for the daemon to respond to a beat, if it is stopped
	patience   = 15 * time.Second       // likewise, if it is only slow or starved
)

// stopped reports whether a signal has stopped the daemon: proc_pid_stat(5).
func (l *daemonLink) stopped() bool {
	var text [256]byte
	n, _ := unix.Pread(StatFD, text[:], 0)
	_, state, _ := bytes.Cut(text[:max(n, 0)], []byte(") "))
	return len(state) > 0 && (state[0] == 'T' || state[0] == 't')
}

// listen handles the daemon's messages until the connection ends.
func (l *daemonLink) listen(view *fs.View) {
	for {
		var msg ToView
		if err := l.wire.Receive(&msg); err != nil {
			if !errors.Is(err, io.EOF) {
				slog.Error("daemon", "err", err)
			}
			return
		}
		switch {
		case msg.Policy != nil:
			ack := FromView{Ack: msg.ID}
			policy, err := scope.Compile(*msg.Policy)
			if err != nil {
				ack.Failed = err.Error()
				_ = l.wire.Send(ack)
				continue
			}
			forget := view.SetPolicy(policy)
			go func() { // forget may block on requests that wait for messages read here
				forget()
				_ = l.wire.Send(ack)
			}()
		case msg.Log != nil:
			l.setFailure(*msg.Log)
		default:
			l.calls.Deliver(msg.ID, msg) // false if the request was given up
		}
	}
}

func (l *daemonLink) setFailure(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure = nil
	if why != "" {
		l.failure = errors.New(why)
		slog.LogAttrs(context.Background(), slog.LevelError, "audit log cannot be written: changes are refused", slog.String("why", why))
	}
}
