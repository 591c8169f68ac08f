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
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/fs/judge"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Name is the argv[0] of a view process.
const Name = "scopefs-view"

// The descriptors that the daemon passes to a view process.
const (
	RootFD    = 3 + iota // the scope's directory, a detached mount: see beneath.Root.Detach; or in MountFD
	FuseFD               // /dev/fuse, mounted; not with Config.Offline
	WireFD               // socket pair to the daemon
	HeartFD              // non-blocking socket pair to the daemon: see heart.Heart
	StatFD               // the daemon's proc_pid_stat(5)
	SpoolFD              // with Config.Spool: a file in memory, append-only: see spool
	HistoryFD            // with Config.History: the directory of the history
	MountFD              // with Config.History: the detached mount that holds RootFD and HistoryFD: see beneath.Pair
	MergedFD             // with Config.Stacked and Config.Offline: the overlay, a detached mount
	UpperFD              // with Config.Bases: its upper layer, a detached mount
	BasesFD              // likewise: the journal of branch.Bases
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
	policy, err := scope.Compile(released(cfg.Policy, cfg.Stacked && !cfg.Offline))
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
	needs := Needs{Passthrough: cfg.Passthrough, Caller: cfg.Caller, Spool: cfg.Spool}
	if cfg.History != nil || cfg.Hold {
		needs.History, needs.Mount = HistoryFD, MountFD
	}
	if cfg.Offline && cfg.Stacked {
		needs.History, needs.Mount, needs.Merged = HistoryFD, MountFD, MergedFD
	}
	measures, err := Confine(RootFD, needs)
	if err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	l := &daemonLink{wire: wire, heart: heart.NewHeart(os.NewFile(HeartFD, "heart")), calls: peer.NewRequests[ToView](0),
		configured: make(chan struct{}), stacked: cfg.Stacked, freeze: make(chan ToView, maxRequests)}
	if spoolFile != nil {
		l.spool = newSpoolWriter(spoolFile, l.drain)
		go l.spool.run(context.Background()) // until the process ends
	}
	opt := fs.Options{
		Policy: policy, Record: cfg.Record, Recorder: l, Timeout: cfg.Timeout,
		Passthrough: cfg.Passthrough, Stacked: cfg.Stacked, Mediated: cfg.Mediated,
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
	var kept *query.Server
	unkept := ""
	if cfg.History != nil {
		kept, err = openHistory(*cfg.History, root, HistoryFD, l)
		switch {
		case err == nil:
			defer kept.Store.Close()
			l.history, opt.History = kept, kept.Store
		case cfg.History.Optional:
			unkept = err.Error()
		default:
			return err
		}
	}
	if cfg.Bases {
		if opt.Bases, err = openBases(root); err != nil {
			return err
		}
	}
	if cfg.Offline && cfg.Stacked {
		if kept, err = openBranch(root); err != nil {
			return err
		}
		if cfg.Hold {
			kept.Branch.Held = policy.Held
		}
		kept.Branch.Judged = func(rel string) bool { return judge.Whole(policy, rel) }
		defer kept.Branch.Close()
		l.history = kept
	}
	if cfg.Offline {
		if kept != nil {
			kept.Hooks.May = func(rel string, _ *beneath.Stat) error {
				if kept.Branch != nil {
					return judge.Take(policy, kept.Branch.Base, kept.Branch.Merged, rel)
				}
				return judge.Write(policy, rel)
			}
			kept.Hooks.Read = func(rel string) error { return judge.Read(policy, rel) }
		}
		return l.serveOffline(measures, func() {
			if kept != nil {
				resumeHistory(kept)
			}
		})
	}
	if cfg.Hold {
		if opt.Hold, err = holdOf(root, HistoryFD); err != nil {
			return err
		}
	}
	view, err := fs.New(root, FuseFD, opt)
	if err != nil {
		return err
	}
	go l.freezes(view)
	if kept != nil {
		kept.Hooks = view.Hooks()
		go resumeHistory(kept)
	}
	go l.heart.Serve(view.Responsive)
	if err := wire.Send(FromView{Ready: measures, Unkept: unkept}); err != nil {
		return err
	}
	time.AfterFunc(startTime, debug.FreeOSMemory) // used only during the start; not while a sandbox starts on the view
	go func() {
		// Without a daemon the view cannot record, so it must not serve.
		l.listen(view)
		os.Exit(0)
	}()
	return view.Serve()
}

// startTime is how long a view keeps the memory of its start.
const startTime = time.Second

// daemonLink is the view's connection to the daemon.
type daemonLink struct {
	wire  *Wire
	heart *heart.Heart

	calls *peer.Requests[ToView]
	spool *spoolWriter // nil: every event is sent

	history historian // nil: none

	stacked bool        // the scope is an overlay
	freeze  chan ToView // messages with Freeze

	configured chan struct{} // closed when the daemon handles all messages: see View.handshake
	pruning    sync.Mutex    // held while Pruned is recorded

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

// listen handles the daemon's messages until the connection ends. view is nil offline.
func (l *daemonLink) listen(view *fs.View) {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	configured := sync.OnceFunc(func() { close(l.configured) })
	for {
		var msg ToView
		if err := l.wire.Receive(&msg); err != nil {
			if !errors.Is(err, io.EOF) {
				slog.Error("daemon", "err", err)
			}
			return
		}
		switch {
		case msg.History != nil:
			go l.serveHistory(ctx, msg.ID, msg.History)
		case msg.Policy != nil && view != nil:
			ack := FromView{Ack: msg.ID}
			policy, err := scope.Compile(released(*msg.Policy, l.stacked))
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
		case msg.Freeze != nil && view != nil:
			l.freeze <- msg // as many as the daemon has under way
		case msg.Log != nil: // the last message of a handshake
			l.setFailure(*msg.Log) // before the first request
			configured()
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
