package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/viewer"
	"github.com/scopefs/scopefs/scope"
)

// The states of a view.
const (
	stateStarting = "starting"
	stateMounted  = "mounted"
	stateFailed   = "failed"
	stateDown     = "down"
)

const (
	readyTimeout = 10 * time.Second // for a view to confine itself
	unmountGrace = 3 * time.Second  // for those who use a view to let go
	metadataTime = time.Second      // how long the kernel may keep metadata
	quickDeath   = 2 * time.Second  // a view that lives no longer is restarted more slowly
)

// view keeps one agent's view mounted: it starts the process that serves it,
// takes its events to the log, and starts another when it dies.
type view struct {
	d   *Daemon
	def *scope.Definition
	at  string

	stop context.CancelFunc
	done chan struct{} // closed when it is unmounted and the process is gone

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when state changes
	state   string
	err     error
	owner   user
	pid     int
	wire    *viewer.Wire
}

// up starts keeping a view mounted and waits until it is, or cannot be.
func (d *Daemon) up(ctx context.Context, def *scope.Definition, at string) (*view, error) {
	if err := mountPoint(def.Name, at); err != nil {
		return nil, err
	}
	// The view outlives the request that asks for it.
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	v := &view{d: d, def: def, at: at, stop: stop, done: make(chan struct{}), changed: make(chan struct{}), state: stateStarting}
	go v.keep(life)
	if err := v.wait(ctx); err != nil {
		v.down()
		return nil, err
	}
	return v, nil
}

// wait waits until the view is mounted or has failed.
func (v *view) wait(ctx context.Context) error {
	for {
		v.mu.Lock()
		state, err, changed := v.state, v.err, v.changed
		v.mu.Unlock()
		switch state {
		case stateMounted:
			return nil
		case stateFailed:
			return err
		case stateDown:
			return fmt.Errorf("view of %q is down", v.def.Name)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (v *view) set(state string, pid int, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.state, v.pid, v.err = state, pid, err
	close(v.changed)
	v.changed = make(chan struct{})
}

// keep serves the view again and again until it is to end.
func (v *view) keep(ctx context.Context) {
	defer close(v.done)
	pause := 10 * time.Millisecond
	for {
		began := time.Now()
		err := v.serve(ctx)
		if ctx.Err() != nil {
			v.set(stateDown, 0, nil)
			return
		}
		v.set(stateFailed, 0, err)
		v.d.event(audit.Event{Event: audit.KindView, Agent: string(v.def.Name), Outcome: "died", Path: v.at, Detail: err.Error()})
		v.d.endSessions(v.def.Name) // their mount is dead
		if time.Since(began) > quickDeath {
			pause = 10 * time.Millisecond
		}
		select {
		case <-ctx.Done():
			v.set(stateDown, 0, nil)
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, 5*time.Second)
	}
}

// serve mounts the view once and returns when its process has ended.
func (v *view) serve(ctx context.Context) error {
	root, owner, err := openScope(v.d.paths.Base, v.def.Name, v.def.User)
	if err != nil {
		return err
	}
	defer root.Close()
	mount, conn, err := newMount(v.def.Name, owner, v.d.root)
	if err != nil {
		return err
	}
	defer mount.Close()
	cmd, wire, err := v.spawn(root, conn, owner)
	if err != nil {
		return err
	}
	defer wire.Close()
	ended := make(chan struct{})
	defer func() { <-ended }()
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	w := viewer.NewWire(wire)
	means, err := v.handshake(wire, w)
	if err == nil {
		err = errors.Join(unmountStale(v.def.Name, v.at), attach(mount, v.at))
	}
	mount.Close() // the mount point holds it now
	if err != nil {
		_ = cmd.Process.Kill()
		return err
	}
	v.mu.Lock()
	v.owner, v.wire = owner, w
	v.mu.Unlock()
	v.d.event(audit.Event{Event: audit.KindView, Agent: string(v.def.Name), Outcome: "mounted", Path: v.at, PID: cmd.Process.Pid, Detail: fmt.Sprint(means)})
	v.set(stateMounted, cmd.Process.Pid, nil)

	leave := context.AfterFunc(ctx, func() { v.unmount(cmd.Process) })
	defer leave()
	v.listen(w)
	<-ended
	return fmt.Errorf("view process ended: %v", cmd.ProcessState)
}

// spawn starts the view process in namespaces of its own, with the scope, the
// connection and a socket, as the agent's user.
func (v *view) spawn(root *scope.Root, conn *os.File, owner user) (*exec.Cmd, *os.File, error) {
	defer conn.Close() // a second copy would keep a dead view's mount waiting
	tree, err := root.Detach()
	if err != nil {
		return nil, nil, err
	}
	treeFile := os.NewFile(uintptr(tree), "scope")
	defer treeFile.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "wire")
	defer theirs.Close()
	_ = unix.SetNonblock(pair[0], true) // so that reads have deadlines
	ours := os.NewFile(uintptr(pair[0]), "wire")

	caller := v.def.Identity == scope.IdentityCaller
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Dir, cmd.Env = []string{viewer.Name}, "/", []string{}
	cmd.Stderr = &logWriter{v.d.logger.With("agent", string(v.def.Name))}
	cmd.ExtraFiles = []*os.File{treeFile, conn, theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // the terminal's signals are the daemon's
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWPID,
	}
	switch {
	case !v.d.root && caller:
		return nil, nil, errors.New("identity: caller needs a daemon that runs as root")
	case !v.d.root && (owner.uid != 0 || owner.gid != 0):
		return nil, nil, fmt.Errorf("the scope of %q belongs to another user: run as that user, or as root", v.def.Name)
	case v.d.root && !caller:
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: owner.uid, Gid: owner.gid}
		cmd.SysProcAttr.AmbientCaps = viewCaps
	}
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, nil, fmt.Errorf("start view process: %w", err)
	}
	return cmd, ours, nil
}

// handshake configures the view and waits until it is confined.
func (v *view) handshake(conn *os.File, w *viewer.Wire) ([]string, error) {
	mediated := v.def.View.Data == scope.DataMediated
	err := w.Send(viewer.ToView{Config: &viewer.Config{
		Policy: v.def.View.PolicySpec(), Record: v.def.View.Record, Timeout: metadataTime,
		Passthrough: v.d.root && !mediated, Mediated: mediated, Caller: v.def.Identity == scope.IdentityCaller,
	}})
	if err != nil {
		return nil, fmt.Errorf("configure view: %w", err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(readyTimeout))
	var reply viewer.FromView
	if err := w.Receive(&reply); err != nil {
		return nil, fmt.Errorf("view did not start: %w", err)
	}
	_ = conn.SetReadDeadline(time.Time{})
	if reply.Failed != "" || len(reply.Ready) == 0 {
		return nil, fmt.Errorf("view refuses to serve: %s", reply.Failed)
	}
	return reply.Ready, v.tellLog(w, v.d.log.Err())
}

// listen takes the view's messages until it ends. Who it is, the channel says.
func (v *view) listen(w *viewer.Wire) {
	for {
		var msg viewer.FromView
		if err := w.Receive(&msg); err != nil {
			if !errors.Is(err, io.EOF) {
				v.d.logger.Warn("view", "agent", v.def.Name, "err", err)
			}
			return
		}
		reply := viewer.ToView{ID: msg.ID}
		switch {
		case msg.Event != nil:
			e := *msg.Event
			e.Event, e.Agent, e.Session = audit.KindFile, string(v.def.Name), ""
			if _, err := v.d.log.Append(context.Background(), e); err != nil {
				reply.Error = err.Error()
			}
		case msg.Groups != 0:
			groups, err := groupsOf(msg.Groups)
			if err != nil {
				reply.Error = err.Error()
			}
			reply.Groups = groups
		default:
			continue
		}
		if w.Send(reply) != nil {
			return
		}
	}
}

// tellLog tells the view whether the log can be written.
func (v *view) tellLog(w *viewer.Wire, failure error) error {
	text := ""
	if failure != nil {
		text = failure.Error()
	}
	return w.Send(viewer.ToView{Log: &text})
}

// unmount takes the view down: when nobody uses it at once, else after a grace
// time for good, in which case those who still use it get ENOTCONN.
func (v *view) unmount(p *os.Process) {
	for end := time.Now().Add(unmountGrace); ; time.Sleep(20 * time.Millisecond) {
		err := unmount(v.at)
		if err == nil {
			break
		}
		if time.Now().After(end) {
			v.d.logger.Warn("view is in use: unmounting it all the same", "agent", v.def.Name, "err", err)
			_ = unix.Unmount(v.at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			break
		}
	}
	// A view whose mount is gone ends by itself, unless it is still in use.
	time.AfterFunc(500*time.Millisecond, func() { _ = p.Kill() })
}

// down ends the view and waits until nothing of it is left.
func (v *view) down() {
	v.stop()
	<-v.done
	_ = unmountStale(v.def.Name, v.at) // a view that had failed
}

// logWriter turns a process's lines into log records.
type logWriter struct{ *slog.Logger }

func (l *logWriter) Write(p []byte) (int, error) {
	l.Info("view", "says", string(p))
	return len(p), nil
}
