// Package viewer is the process that serves one view: started by the daemon
// with three descriptors and nothing else, confined by itself before it
// answers the first request, and gone when the daemon is.
package viewer

import (
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

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Name is the argv[0] that makes scopefs a view process.
const Name = "scopefs-view"

// The descriptors a view process is started with.
const (
	RootFD  = 3 + iota // the scope's directory: a detached mount, see scope.Root.Detach
	FuseFD             // /dev/fuse, mounted
	WireFD             // socket pair to the daemon
	HeartFD            // socket pair to the daemon, which does not block: see Heart
)

// Main is the view process. It returns the exit status.
func Main() int {
	conn := os.NewFile(WireFD, "daemon")
	wire := NewWire(conn)
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
	syscall.Umask(0) // each request brings its own
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	var watch *beneath.Watch
	if cfg.Watch {
		if watch, err = beneath.NewWatch(); err != nil {
			logger.Warn("changes by others are seen after a time", "err", err, "time", cfg.Timeout)
		}
	}
	cfg.Limits.Handles = fs.HandlesWithin(cfg.Limits.Handles)
	means, err := Confine(RootFD, cfg.Passthrough, cfg.Caller)
	if err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	l := &link{wire: wire, heart: NewHeart(os.NewFile(HeartFD, "heart")), waiting: map[uint64]chan ToView{}}
	opt := fs.Options{
		Policy: policy, Record: cfg.Record, Recorder: l, Timeout: cfg.Timeout,
		Passthrough: cfg.Passthrough, Mediated: cfg.Mediated,
		Watch: watch, Shared: cfg.Shared, XAttrs: cfg.XAttrs, Trace: cfg.Trace, Spin: cfg.Spin, Logger: logger, Limits: cfg.Limits,
	}
	if cfg.Caller {
		opt.Groups = l.groups
	}
	view, err := fs.New(beneath.NewRoot(RootFD), FuseFD, opt)
	if err != nil {
		return err
	}
	debug.FreeOSMemory() // what starting took
	go l.heart.Serve(view.Responsive)
	if err := wire.Send(FromView{Ready: means}); err != nil {
		return err
	}
	go func() {
		// A view that cannot record must not serve: without a daemon it ends.
		l.listen(view)
		os.Exit(0)
	}()
	return view.Serve()
}

// link is the view's end of the wire.
type link struct {
	wire  *Wire
	heart *Heart

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan ToView
	failure error // why the log cannot be written
}

var _ fs.Recorder = (*link)(nil)

// Record returns when the daemon has written the event.
func (l *link) Record(_ context.Context, e audit.Event) error {
	msg := FromView{Event: &e, Path: cut(e.Path), Target: cut(e.Target)}
	e.Path, e.Target = "", ""
	_, err := l.ask(msg)
	return err
}

// cut leaves of a string its two ends, more than the log will take: what a
// path is must not decide whether it can be told.
func cut(s string) []byte {
	const end = 8 << 10
	if len(s) <= 2*end {
		return []byte(s)
	}
	return []byte(s[:end] + "..." + s[len(s)-end:])
}

// Err says why the log cannot be written.
func (l *link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

// groups asks the daemon, who sees /proc, for a process's groups.
func (l *link) groups(pid uint32) ([]uint32, error) {
	reply, err := l.ask(FromView{Groups: pid})
	return reply.Groups, err
}

// ask sends a message and waits for its answer.
func (l *link) ask(msg FromView) (ToView, error) {
	answer := make(chan ToView, 1)
	l.mu.Lock()
	l.last++
	msg.ID = l.last
	l.waiting[msg.ID] = answer
	l.mu.Unlock()
	if err := l.wire.Send(msg); err != nil {
		l.mu.Lock()
		delete(l.waiting, msg.ID)
		l.mu.Unlock()
		return ToView{}, err
	}
	for {
		select {
		case reply := <-answer:
			if reply.Error != "" {
				return reply, errors.New(reply.Error)
			}
			return reply, nil
		case <-time.After(doubtTime): // it may throttle, or write to a slow disk; or it is stopped
			if !l.heart.Alive(answerTime) {
				return ToView{}, errors.New("the daemon does not answer")
			}
		}
	}
}

const (
	doubtTime  = time.Second            // for an answer of the daemon, before the view asks whether it runs
	answerTime = 500 * time.Millisecond // for its heart to answer
)

// listen handles the daemon's messages until it is gone.
func (l *link) listen(view *fs.View) {
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
			go func() { // it may wait for who waits for an answer that comes by us
				forget()
				_ = l.wire.Send(ack)
			}()
		case msg.Log != nil:
			l.setFailure(*msg.Log)
		default:
			l.mu.Lock()
			answer := l.waiting[msg.ID]
			delete(l.waiting, msg.ID)
			l.mu.Unlock()
			if answer != nil {
				answer <- msg
			}
		}
	}
}

func (l *link) setFailure(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure = nil
	if why != "" {
		l.failure = errors.New(why)
		slog.LogAttrs(context.Background(), slog.LevelError, "audit log cannot be written: changes are refused", slog.String("why", why))
	}
}
