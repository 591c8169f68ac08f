// Package serve is the process that serves a view. It confines itself before it serves the first request, and exits when no
// daemon is there any more. Package view is the daemon's end, package wire has the messages.
package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/fs"
	"github.com/scopefs/scopefs/fs/branch"
	"github.com/scopefs/scopefs/fs/echo"
	"github.com/scopefs/scopefs/fs/fusedev"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/fs/judge"
	"github.com/scopefs/scopefs/internal/boottime"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/reconnect"
	"github.com/scopefs/scopefs/internal/spooled"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Main runs the view process and returns its exit status.
func Main() int {
	conn := newConnection(os.NewFile(wire.WireFD, "daemon"), os.NewFile(wire.HeartFD, "heart"), os.NewFile(wire.StatFD, "stat"))
	if err := run(conn); err != nil {
		_ = conn.wire.Send(wire.FromView{Failed: err.Error()})
		return 1
	}
	return 0
}

func run(conn *connection) error {
	var first wire.ToView
	if err := conn.wire.Receive(&first); err != nil {
		return fmt.Errorf("receive configuration: %w", err)
	}
	cfg := first.Config
	if cfg == nil {
		return errors.New("the first message is not a configuration")
	}
	if cfg.Leased && boottime.Now() >= cfg.Lease { // what a crash has interrupted is finished before the first request
		return errLease
	}
	root, err := beneath.NewDetached(wire.RootFD)
	if err != nil {
		return err
	}
	policy, err := scope.Compile(guarded(root, released(cfg.Policy, cfg.Whole && !cfg.Offline)))
	if err != nil {
		return err
	}
	syscall.Umask(0)                                     // each request carries its own umask
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) // standard error may have no reader, and must not end the view (os/signal)
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	var watch *beneath.Watch
	late := ""
	if cfg.Watch {
		if watch, err = beneath.NewWatch(); err != nil {
			late = err.Error()
			logger.Warn("changes by other processes become visible only after the attribute timeout", "err", err, "time", cfg.Timeout)
		}
	}
	cfg.Limits.Handles = fusedev.HandlesWithin(cfg.Limits.Handles)
	var owner *fs.Owner
	if cfg.Sole {
		owner = &fs.Owner{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	}
	var spoolFile *os.File
	if cfg.Spool {
		spoolFile = os.NewFile(wire.SpoolFD, "spool") // now: the filter denies fcntl(2) on it
	}
	var control, beats *os.File
	if cfg.Grace > 0 {
		control, beats = os.NewFile(wire.ControlFD, "control"), os.NewFile(wire.HolderFD, "holder")
	}
	needs := Needs{Passthrough: cfg.Passthrough, Caller: cfg.Caller, Spool: cfg.Spool}
	if cfg.History != nil || cfg.Hold {
		needs.History, needs.Mount = wire.HistoryFD, wire.MountFD
	}
	needs.Commit = cfg.Offline && cfg.Hold
	measures, err := Confine(wire.RootFD, needs)
	if err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	l := newDaemonLink(conn, cfg.Grace)
	l.root, l.whole, l.rules, l.forgotten = root, cfg.Whole, &cfg.Policy, true
	if spoolFile != nil {
		l.spool = spooled.New(spoolFile, l.drain)
		go l.spool.Run(context.Background()) // until the process ends
	}
	opt := fs.Options{
		Policy: policy, Record: cfg.Record, Recorder: l, Asker: l, Echoer: l, Gate: cfg.Gate,
		Remote: cfg.Remote, Patience: cfg.Patience, Timeout: cfg.Timeout,
		Passthrough: cfg.Passthrough, Mediated: cfg.Mediated,
		Watch: watch, Shared: cfg.Shared, Owner: owner, XAttrs: cfg.XAttrs, Trace: cfg.Trace, Spin: cfg.Spin, Logger: logger, Limits: cfg.Limits,
	}
	if cfg.Caller {
		opt.Groups = l.groups
	}
	if l.leased = cfg.Leased; l.leased {
		l.lease.Store(int64(cfg.Lease))
		opt.Flags = unix.O_DSYNC
	}
	root.Shown = cfg.Shown
	l.beside.Store(&cfg.Beside)
	root.Beside = func() (place string, dirs []string) { b := l.beside.Load(); return b.Place, b.Dirs }
	if cfg.Hold && !cfg.Offline {
		if opt.Hold, err = openLayers(cfg, root); err == nil {
			opt.Whole = cfg.Whole
			opt.Hold.Keep, err = branch.NewBases(opt.Hold)
		}
		if err != nil {
			return err
		}
	}
	if cfg.Quota != nil {
		if opt.Quota, err = counterOf(cfg, root, opt.Hold); err != nil {
			return err
		}
	}
	var kept *query.Server
	layers := opt.Hold
	if !cfg.Whole { // what rules hold has no history
		layers = nil
	}
	unkept := ""
	if cfg.History != nil && (!cfg.Offline || !cfg.Hold) {
		if err = mayKeep(wire.HistoryFD, cfg.Remote); err == nil {
			opt.History, err = openHistory(*cfg.History, root, wire.HistoryFD, layers, l, opt.Quota)
		}
		switch {
		case err == nil:
			defer opt.History.Close()
			kept = &query.Server{Store: opt.History}
			l.history = kept
		case cfg.History.Optional:
			unkept = err.Error()
		default:
			return err
		}
	}
	if cfg.Offline && cfg.Hold {
		if kept, err = openBranch(cfg, root, policy.Approved(), l); err != nil {
			return err
		}
		l.history = kept // it stays open until this process ends: a request may still use it
	}
	if cfg.Offline {
		if kept != nil {
			kept.Hooks.May = func(rel string, _ *beneath.Stat) error { return judge.Undo(policy.Approved(), rel, 1) }
			kept.Hooks.Read = func(rel string) error { return judge.Read(policy, rel) }
		}
		return l.serveOffline(conn, measures, func() {
			if kept != nil {
				resumeHistory(kept)
			}
		})
	}
	view, err := fs.New(root, wire.FuseFD, opt)
	if err != nil {
		return err
	}
	go l.freezes(view)
	if kept != nil {
		kept.Hooks = view.Hooks()
		go resumeHistory(kept)
	}
	go conn.heart.Serve(view.Responsive)
	if beats != nil {
		go heart.NewHeart(beats).Serve(view.Responsive)
	}
	if err := conn.wire.Send(wire.FromView{Ready: measures, Unkept: unkept, Late: late}); err != nil {
		return err
	}
	// What the start has used stays in the heap: the records of a first collection take more memory than it frees, and one that has
	// never collected is not made to every two minutes (runtime, forcegcperiod).
	go func() {
		l.serve(conn, view, control)
		os.Exit(0)
	}()
	<-l.configured // whether the log can be written is known before the first request
	return view.Serve()
}

// daemonLink is the view's link to its daemons, one after the other.
type daemonLink struct {
	grace time.Duration   // how long the view goes on without a daemon; 0: it ends with the daemon
	spool *spooled.Writer // nil: every event is sent

	leased bool         // the view changes something before the end of lease alone
	lease  atomic.Int64 // by boottime.Now

	history historian // nil: none
	beside  atomic.Pointer[wire.Beside]

	root   *beneath.Root
	whole  bool            // every change is held
	freeze chan fromDaemon // messages with Freeze

	ready      func()        // closes configured, once
	configured chan struct{} // closed when the daemon handles all messages: see handshake in package view
	pruned     chan struct{} // closed when the last wire.Pruned is recorded; only a prune uses it

	*reconnect.Daemons[*connection] // none: no daemon has sent its rules since the last one ended

	rule      sync.Mutex        // guards what follows
	rules     *scope.PolicySpec // by which the view decides
	forgotten bool              // the kernel caches nothing by other rules
	failure   error             // why the log cannot be written
}

// fromDaemon is a message and the connection that its answer goes to.
type fromDaemon struct {
	wire.ToView
	conn *connection
}

var _ fs.Recorder = (*daemonLink)(nil)

// Record returns once the daemon has written the event, or once it is in the spool.
func (l *daemonLink) Record(_ context.Context, e event.Event) error {
	if l.Err() == nil {
		if recorded, err := l.spool.Record(e); recorded || err != nil {
			return err
		}
	}
	msg := wire.FromView{Event: &e, Path: spooled.Cut(e.Path), Target: spooled.Cut(e.Target)}
	e.Path, e.Target = "", ""
	reply, err := l.request(msg, nil)
	if l.spool != nil && !errors.Is(err, reconnect.ErrNoDaemon) {
		l.spool.Use(reply.Spool && err == nil)
	}
	return err
}

// drain is the spooled.Drain of the spool. It does not wait for the next daemon: events may go on to the spool meanwhile.
func (l *daemonLink) drain(reset bool) (use, answered bool, err error) {
	conn, err := l.Connected(time.Time{})
	if err != nil {
		return false, true, err
	}
	reply, err := conn.request(wire.FromView{Drain: true, Reset: reset}, nil)
	if errors.Is(err, errLost) { // a daemon that has ended empties no file
		l.Drop(conn)
		return false, true, reconnect.ErrNoDaemon
	}
	return reply.Spool, reply.ID != 0, err
}

// Err returns why the view may change nothing: the log cannot be written, or the lease has ended. Nobody needs to tell the view of
// the latter: its daemon may be stopped.
func (l *daemonLink) Err() error {
	if l.leased && boottime.Now() >= time.Duration(l.lease.Load()) {
		return errLease
	}
	l.rule.Lock()
	defer l.rule.Unlock()
	return l.failure
}

// groups requests a process's groups from the daemon, which can read /proc.
func (l *daemonLink) groups(pid uint32) ([]uint32, error) {
	reply, err := l.request(wire.FromView{Groups: pid}, nil)
	return reply.Groups, err
}

// Ask implements fs.Asker. The daemon bounds the wait.
func (l *daemonLink) Ask(q fs.Question, cancel <-chan struct{}) (granted bool, err error) {
	ask := &wire.Ask{Path: []byte(q.Path), Write: q.Write, Whole: q.Whole, PID: q.PID, Wait: cancel != nil}
	reply, err := l.request(wire.FromView{Ask: ask}, cancel)
	if err == nil && reply.Outside {
		err = fs.ErrOutside
	}
	return reply.Granted, err
}

// Echo implements fs.Echoer. The daemon bounds the wait.
func (l *daemonLink) Echo(to string, r echo.Request, cancel <-chan struct{}) (map[string]echo.Reply, error) {
	reply, err := l.request(wire.FromView{Echo: &wire.Echo{To: to, Request: r}}, cancel)
	all := map[string]echo.Reply{}
	for _, one := range reply.Echoes {
		all[one.From] = one.Reply
	}
	return all, err
}

// grant makes the view decide by one more grant. The kernel has nothing cached that a grant changes: names and attributes are the same,
// and a closed view has shown none.
func (l *daemonLink) grant(view *fs.View, g scope.Grant) {
	l.rule.Lock()
	defer l.rule.Unlock()
	rules := *l.rules
	if rules.Granted = append(slices.Clone(rules.Granted), g); slices.Contains(l.rules.Granted, g) {
		return
	}
	if policy, err := scope.Compile(guarded(l.root, released(rules, l.whole))); err == nil {
		l.rules = &rules
		view.SetPolicy(policy)
	}
}

// request sends a message and waits for the response. It returns an error if the
// daemon's heartbeat stops. If the daemon ends, the next one gets the message again, and reconnect.ErrNoDaemon reports that there is
// none.
func (l *daemonLink) request(msg wire.FromView, cancel <-chan struct{}) (wire.ToView, error) {
	for began := time.Now(); ; {
		conn, err := l.Connected(began.Add(reconnect.GapTime))
		if err != nil {
			return wire.ToView{}, err
		}
		reply, err := conn.request(msg, cancel)
		if !errors.Is(err, errLost) {
			return reply, err
		}
		l.Drop(conn)
		if msg.Event != nil {
			msg.Began = began // the daemon that has ended may have recorded it
		}
	}
}

// errLease is the error of a change without a lease.
var errLease = errors.New("placement: one: the lease of this host has ended")

var errLost = errors.New("the daemon has ended")

// connection is the view's end of the sockets of one daemon.
type connection struct {
	wire  *wire.Conn
	heart *heart.Heart
	calls *peer.Requests[wire.ToView]
	files []*os.File    // of wire, heart and the daemon's proc_pid_stat(5)
	lost  chan struct{} // closed when no message follows
}

func newConnection(messages, beats, stat *os.File) *connection {
	return &connection{wire: wire.New(messages, wire.MaxToView), heart: heart.NewHeart(beats), calls: peer.NewRequests[wire.ToView](0),
		files: []*os.File{messages, beats, stat}, lost: make(chan struct{})}
}

func newDaemonLink(conn *connection, grace time.Duration) *daemonLink {
	l := &daemonLink{grace: grace, configured: make(chan struct{}), freeze: make(chan fromDaemon, wire.MaxRequests),
		Daemons: reconnect.New(conn, grace > 0)}
	l.Alone = func(alone bool) { l.spool.SetAlone(alone) }
	l.ready = sync.OnceFunc(func() { close(l.configured) })
	return l
}

// request sends a message and waits for the response, or with EINTR until cancel is closed.
func (c *connection) request(msg wire.FromView, cancel <-chan struct{}) (wire.ToView, error) {
	call, err := c.calls.Begin(context.Background())
	if err != nil {
		return wire.ToView{}, err
	}
	defer call.End()
	msg.ID = call.ID
	if err := c.wire.Send(msg); errors.Is(err, peer.ErrTooLarge) {
		return wire.ToView{}, err
	} else if err != nil {
		return wire.ToView{}, errLost
	}
	answer := func(reply wire.ToView) (wire.ToView, error) {
		if reply.Error != "" {
			return reply, errors.New(reply.Error)
		}
		return reply, nil
	}
	for wait := doubtTime; ; wait = answerTime {
		select {
		case reply := <-call.Reply:
			return answer(reply)
		case <-cancel:
			_ = c.wire.Send(wire.FromView{Cancel: call.ID})
			return wire.ToView{}, syscall.EINTR
		case <-c.lost:
			select {
			case reply := <-call.Reply: // it came before
				return answer(reply)
			default:
				return wire.ToView{}, errLost
			}
		case <-time.After(wait): // the daemon may throttle, wait for a slow disk or a processor, or be stopped
			silent := c.heart.Silence()
			if silent >= answerTime && c.stopped() || silent >= patience {
				return wire.ToView{}, errors.New("the daemon does not respond")
			}
			c.heart.Beat()
		}
	}
}

const (
	doubtTime  = time.Second            // wait for a response before the first beat
	answerTime = 500 * time.Millisecond // for the daemon to respond to a beat, if it is stopped
	patience   = 15 * time.Second       // likewise, if it is only slow or starved
)

// stopped reports whether a signal has stopped the daemon: proc_pid_stat(5).
func (c *connection) stopped() bool {
	var text [256]byte
	n, _ := c.files[2].ReadAt(text[:], 0)
	_, state, _ := bytes.Cut(text[:max(n, 0)], []byte(") "))
	return len(state) > 0 && (state[0] == 'T' || state[0] == 't')
}

// serve handles the messages of one daemon after the other, and returns when no next one is to come. Without control the
// first daemon is the last one: without a daemon the view cannot record, so it must not serve.
func (l *daemonLink) serve(conn *connection, view *fs.View, control *os.File) {
	for {
		l.listen(conn, view)
		l.Drop(conn)
		for _, f := range conn.files {
			f.Close()
		}
		if control == nil {
			return
		}
		files := reconnect.Take(control, time.Now().Add(l.grace))
		if len(files) != len(conn.files) {
			return
		}
		conn = newConnection(files[0], files[1], files[2])
		go conn.heart.Serve(view.Responsive)
	}
}

// listen handles the daemon's messages until the connection ends. view is nil offline.
func (l *daemonLink) listen(conn *connection, view *fs.View) {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	defer close(conn.lost)
	for {
		var msg wire.ToView
		if err := conn.wire.Receive(&msg); err != nil {
			if !errors.Is(err, io.EOF) {
				slog.Error("daemon", "err", err)
			}
			return
		}
		switch {
		case msg.History != nil:
			go l.serveHistory(ctx, conn, msg.ID, msg.History)
		case msg.Policy != nil && view != nil:
			ack := wire.FromView{Ack: msg.ID}
			forget := func() {}
			if !l.cached(*msg.Policy) {
				policy, err := scope.Compile(guarded(l.root, released(*msg.Policy, l.whole)))
				if err != nil {
					ack.Failed = err.Error()
					_ = conn.wire.Send(ack)
					continue
				}
				forget = view.SetPolicy(policy)
			}
			l.rule.Lock()
			l.rules, l.forgotten = msg.Policy, false
			l.rule.Unlock()
			l.Meet(conn) // with the first rules of a next daemon
			go func() {  // forget may block on requests that wait for messages read here
				forget()
				l.rule.Lock()
				l.forgotten = l.forgotten || l.rules == msg.Policy // else it has newer rules
				l.rule.Unlock()
				_ = conn.wire.Send(ack)
			}()
		case msg.Grant != nil && view != nil:
			l.grant(view, *msg.Grant)
		case msg.Beside != nil:
			l.beside.Store(msg.Beside)
			_ = conn.wire.Send(wire.FromView{Answer: msg.ID})
		case msg.Lease != 0:
			l.lease.Store(int64(msg.Lease))
		case msg.Freeze != nil && view != nil:
			l.freeze <- fromDaemon{msg, conn} // as many as the daemon has under way
		case msg.Log != nil: // the last message of a handshake
			l.setFailure(*msg.Log) // before the first request
			l.ready()
		default:
			conn.calls.Deliver(msg.ID, msg) // false if the request was given up
		}
	}
}

// cached reports whether the kernel's caches are by these rules: a next daemon sends those that hold, most often. To
// invalidate a name, the kernel waits for clients that use its directory.
func (l *daemonLink) cached(rules scope.PolicySpec) bool {
	l.rule.Lock()
	defer l.rule.Unlock()
	return l.forgotten && reflect.DeepEqual(*l.rules, rules)
}

func (l *daemonLink) setFailure(why string) {
	l.rule.Lock()
	defer l.rule.Unlock()
	l.failure = nil
	if why != "" {
		l.failure = errors.New(why)
		slog.LogAttrs(context.Background(), slog.LevelError, "audit log cannot be written: changes are refused", slog.String("why", why))
	}
}

// freezes does what the daemon's messages say, one after the other.
func (l *daemonLink) freezes(view *fs.View) {
	var thaw func()
	for msg := range l.freeze {
		switch {
		case *msg.Freeze && thaw == nil:
			thaw = view.Freeze()
		case !*msg.Freeze && thaw != nil:
			thaw()
			thaw = nil
		}
		_ = msg.conn.wire.Send(wire.FromView{Answer: msg.ID})
	}
}

// released returns the rules of a view whose changes are all held: no path needs a rule for that.
func released(spec scope.PolicySpec, whole bool) scope.PolicySpec {
	if !whole {
		return spec
	}
	return spec.Released()
}
