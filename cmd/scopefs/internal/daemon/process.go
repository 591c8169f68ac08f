package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/viewer"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// may tells whether we can serve the view as its owner. An ordinary user is 0 in
// the user namespace of his daemon.
func (v *view) may(owner user) error {
	switch {
	case v.d.root:
		return nil
	case v.def.Identity == agents.IdentityCaller:
		return errors.New("identity: caller needs a daemon that runs as root")
	case owner != user{}:
		return fmt.Errorf("the scope of %q belongs to another user: run as that user, or as root", v.def.Name)
	}
	return nil
}

// shared tells whether others than the agent's user may come in. An ordinary
// user's daemon cannot let them.
func (v *view) shared() bool {
	return v.def.Identity == agents.IdentityCaller || v.def.View.AllowOther && v.d.root
}

// served is a view process and the daemon's ends of its sockets.
type served struct {
	cmd   *exec.Cmd
	wire  *os.File
	heart *os.File
	ended chan struct{} // closed when the process is gone and was waited for
}

// spawn starts the view process in namespaces of its own, with the scope, the
// connection and two sockets, as the agent's user.
func (v *view) spawn(root *beneath.Root, conn *os.File, owner user) (*served, error) {
	defer conn.Close() // a second copy would keep a dead view's mount waiting
	tree, err := root.Detach()
	if err != nil {
		return nil, err
	}
	treeFile := os.NewFile(uintptr(tree), "scope")
	defer treeFile.Close()
	wire, theirWire, err := socketPair("wire")
	if err != nil {
		return nil, err
	}
	defer theirWire.Close()
	_ = unix.SetNonblock(int(theirWire.Fd()), false)
	heart, theirHeart, err := socketPair("heart")
	if err != nil {
		wire.Close()
		return nil, err
	}
	defer theirHeart.Close()

	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Dir, cmd.Env = []string{viewer.Name}, "/", []string{}
	cmd.Stderr = &logWriter{logger: v.d.logger.With("agent", string(v.def.Name))}
	cmd.ExtraFiles = []*os.File{treeFile, conn, theirWire, theirHeart}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // the terminal's signals are the daemon's
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWPID,
	}
	if v.d.root && v.def.Identity != agents.IdentityCaller {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: owner.uid, Gid: owner.gid}
		cmd.SysProcAttr.AmbientCaps = viewCaps
	}
	if err := cmd.Start(); err != nil {
		wire.Close()
		heart.Close()
		return nil, fmt.Errorf("start view process: %w", err)
	}
	if err := sandbox.Expendable(cmd.Process.Pid); err != nil {
		v.d.logger.Warn("view is spared when memory runs out", "agent", v.def.Name, "err", err)
	}
	p := &served{cmd: cmd, wire: wire, heart: heart, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		_ = cmd.Wait()
	}()
	return p, nil
}

// socketPair returns two connected stream sockets that do not block.
func socketPair(name string) (ours, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(pair[0]), name), os.NewFile(uintptr(pair[1]), name), nil
}

// quit ends the process. Its mount must have been aborted before: a thread of it
// that waits for a client would not let it end. It returns how the process ended,
// which it does not wait for long.
func (p *served) quit() string {
	p.wire.Close()
	p.heart.Close()
	_ = p.cmd.Process.Kill()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.String()
	case <-time.After(reapTime):
		return "it was killed and is not gone yet"
	}
}

// handshake configures the view and waits until it is confined.
func (v *view) handshake(process *os.Process, conn *os.File, w *viewer.Wire) ([]string, error) {
	spec, caller := v.def.View, v.def.Identity == agents.IdentityCaller
	v.mu.Lock()
	rules, ruled := v.rules, v.ruled
	v.mu.Unlock()
	cfg := viewer.Config{
		Policy: rules, Record: spec.Record, Caller: caller,
		Mediated: spec.Data == agents.DataMediated, Passthrough: v.d.root && spec.Data != agents.DataMediated,
		Shared: v.shared(), XAttrs: v.shared() || spec.XAttrs, Trace: v.d.trace, Spin: v.def.Limits.CPU == 0 && !cpuLimited("/"),
	}
	cfg.Limits.Handles, cfg.Limits.Links, cfg.Limits.Memory = v.def.Limits.View()
	if spec.Cache != agents.CacheNone {
		cfg.Timeout, cfg.Watch = metadataTime, true
	}
	err := w.Send(viewer.ToView{Config: &cfg})
	if err != nil {
		return nil, fmt.Errorf("configure view: %w", err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(readyTimeout))
	var reply viewer.FromView
	if err := w.Receive(&reply); err != nil {
		return nil, fmt.Errorf("view did not start: %w", err)
	}
	if reply.Failed != "" || len(reply.Ready) == 0 {
		return nil, fmt.Errorf("view refuses to serve: %s", reply.Failed)
	}
	for { // until what it has is what is wanted; from then on setRules tells it itself
		v.mu.Lock()
		late := v.ruled != ruled
		rules, ruled = v.rules, v.ruled
		if !late {
			v.wire, v.process = w, process // before it is told first: a change in between is told as well
		}
		v.mu.Unlock()
		if !late {
			break
		}
		if err := w.Send(viewer.ToView{ID: ruled, Policy: &rules}); err != nil {
			return nil, err
		}
		var ack viewer.FromView // it is not mounted yet: nothing else comes from it
		if err := w.Receive(&ack); err != nil {
			return nil, err
		}
		if ack.Failed != "" {
			return nil, fmt.Errorf("new rules: %s", ack.Failed)
		}
	}
	_ = conn.SetReadDeadline(time.Time{})
	return reply.Ready, v.tellLog(w)
}

// listen takes the view's messages until it ends; alive ends when it is about
// to. Who it is, the channel says.
func (v *view) listen(alive context.Context, w *viewer.Wire) {
	paces := v.d.pacesOf(v.def.Name)
	var told once
	for {
		var msg viewer.FromView
		if err := w.Receive(&msg); err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
				v.d.logger.Warn("view", "agent", v.def.Name, "err", err)
			}
			return
		}
		reply := viewer.ToView{ID: msg.ID}
		switch {
		case msg.Event != nil:
			e := *msg.Event
			e.Event, e.Agent, e.Session = audit.KindFile, string(v.def.Name), ""
			e.Path, e.Target = string(msg.Path), string(msg.Target)
			byTool := false
			if e.Verdict != audit.Allow {
				e.Call, byTool = v.d.callOf(v.def.Name, e.PID)
			}
			if byTool {
				v.d.renames.add(e) // before the client has its answer
			}
			if byTool && told.has(e) {
				break
			}
			v.mu.Lock()
			hurry := v.hurry
			v.mu.Unlock()
			select {
			case <-hurry: // nor is it to be paid for
			default:
				_ = paces.wait(alive, hurry, e) // it is recorded all the same
			}
			if _, err := v.d.log.Append(context.Background(), e); err != nil {
				reply.Error = err.Error()
			} else if byTool {
				told.add(e)
			}
		case msg.Ack != 0:
			v.acked(msg.Ack, msg.Failed)
			continue
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

// once holds the violations of the file tools' calls that are in the log. A tool that
// was refused looks at each name on the way for the one to tell the agent of, which is
// no further attempt.
type once map[violation]bool

type violation struct{ call, path string }

// maxOnce bounds once. A violation that is forgotten is recorded again.
const maxOnce = 1 << 10

func (o once) has(e audit.Event) bool {
	return e.Verdict == audit.Violation && o[violation{e.Call, e.Path}]
}

func (o *once) add(e audit.Event) {
	if e.Verdict != audit.Violation {
		return
	}
	if *o == nil || len(*o) == maxOnce {
		*o = once{}
	}
	(*o)[violation{e.Call, e.Path}] = true
}

// bounded ends a write that a view does not take: the log must not wait for one
// that is broken. What is written to it after that fails as well.
type bounded struct{ *os.File }

func (b bounded) Write(p []byte) (int, error) {
	_ = b.SetWriteDeadline(time.Now().Add(writeTimeout))
	n, err := b.File.Write(p)
	if err != nil {
		b.Close()
	}
	return n, err
}

const writeTimeout = 2 * time.Second

// tellLog tells the view whether the log can be written: what is true when it is
// said, so that the last word is the right one.
func (v *view) tellLog(w *viewer.Wire) error {
	v.telling.Lock()
	defer v.telling.Unlock()
	text := ""
	if failure := v.d.log.Err(); failure != nil {
		text = failure.Error()
	}
	return w.Send(viewer.ToView{Log: &text})
}

// logWriter turns a process's lines into log records.
type logWriter struct {
	logger *slog.Logger
	line   []byte
}

func (l *logWriter) Write(p []byte) (int, error) {
	for part := range bytes.Lines(p) {
		l.line = append(l.line, part...)
		if bytes.HasSuffix(part, []byte("\n")) || len(l.line) > maxLogLine {
			l.logger.Info("view", "says", string(bytes.TrimSpace(l.line)))
			l.line = l.line[:0]
		}
	}
	return len(p), nil
}

const maxLogLine = 64 << 10 // bytes; a longer one is told in pieces
