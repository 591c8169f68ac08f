package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/packets"
	"github.com/scopefs/scopefs/internal/proc"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

// startTimeout bounds the start of a session when ctx does not.
const startTimeout = 30 * time.Second

// checkTimeout bounds the Check of a failed start, which takes tens of milliseconds.
const checkTimeout = 5 * time.Second

// Start starts a session. ctx bounds the start alone; the session lives until it is
// closed or killed, or its Host is closed. When bwrap fails because the host lacks a
// facility, the error is that of Check for the user of spec.
func (h *Host) Start(ctx context.Context, spec Spec) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s, spawned, err := h.start(ctx, spec)
	if err == nil {
		return s, nil
	}
	if spawned && ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout) // ctx may end in it
		defer cancel()
		_, found := check(ctx, h.starter.bwrap, []uint32{spec.UID})
		if missing := failures(found); missing != nil {
			return nil, missing
		}
	}
	return nil, fmt.Errorf("start sandbox of %q: %w", spec.Agent, err)
}

// start starts a session, and reports whether bwrap was executed.
func (h *Host) start(ctx context.Context, spec Spec) (s *Session, spawned bool, err error) {
	if err := spec.validate(); err != nil {
		return nil, false, err
	}
	plan, err := newPlan(&spec, h.filter, &h.certificates)
	if err != nil {
		return nil, false, err
	}
	defer plan.close()
	group, own, err := h.group(&spec)
	if err != nil {
		return nil, false, err
	}
	s = newSession(h, spec, group)
	s.ownGroup, s.lacks = own, plan.lacks
	args, info, err := h.spawn(s, plan)
	if err != nil {
		return nil, false, errors.Join(err, s.removeGroup())
	}
	go s.wait()
	if err = h.hold(s); err == nil {
		err = s.handshake(ctx, plan, args, info)
	}
	if err != nil {
		args.Close()
		info.Close()
		return nil, true, errors.Join(err, s.Close(), s.said())
	}
	return s, true, nil
}

// group returns the control group of a new session, and whether only this session
// uses it.
func (h *Host) group(spec *Spec) (g *group, own bool, err error) {
	if spec.Group == nil {
		g, err = h.cgroups.newGroup(spec.Agent, spec.Limits, nil)
		return g, true, err
	}
	g, err = spec.Group.session(spec.Limits)
	return g, g != spec.Group.shared, err
}

// spawn starts bwrap, which blocks until it has its arguments. It returns the pipe for
// the arguments and the pipe on which bwrap reports the pid of init.
func (h *Host) spawn(s *Session, plan *plan) (args, info *os.File, err error) {
	credential, err := credential(s.spec.UID, s.spec.GID)
	if err != nil {
		return nil, nil, err
	}
	wire, control, err := packets.Pair(pid1.MaxReply)
	if err != nil {
		return nil, nil, err
	}
	defer control.Close()
	argsOut, args, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(err, wire.Close())
	}
	defer argsOut.Close()
	info, infoIn, err := infoPipe()
	if err != nil {
		return nil, nil, errors.Join(err, wire.Close(), args.Close())
	}
	defer infoIn.Close()

	// Init is executed by descriptor: the program needs no path that the agent's user
	// can reach, and has none in the sandbox (see sealed).
	words := []string{"--args", strconv.Itoa(fdArgs), "--", fmt.Sprintf("/proc/self/fd/%d", fdProgram), child.Init}
	if s.spec.Proxy {
		words = append(words, pid1.ArgListen)
	}
	beside, err := s.spec.asides(plan, credential)
	if err == nil {
		defer beside.close()
		o := order{words: words, files: append([]*os.File{control, h.program, argsOut, infoIn}, plan.files...), output: &s.output,
			as: credential, mounts: h.needed(plan, s.spec.Mounts), beside: beside}
		if s.spec.Limits.CPU == 0 { // else a limit could stop the fork
			o.group, o.agent = s.group, s.spec.Group
		}
		s.bwrap, err = h.starter.start(o)
	}
	if err != nil {
		return nil, nil, errors.Join(err, wire.Close(), args.Close(), info.Close())
	}
	s.wire = wire
	return args, info, nil
}

// infoPipe returns a pipe whose other end can be read as well: a bwrap whose daemon has died does not end with SIGPIPE before it
// has released init, which ends with the control socket. So bwrap has no --die-with-parent either: see killStart.
func infoPipe() (r, both *os.File, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer w.Close()
	both, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", w.Fd()), os.O_RDWR, 0)
	if err != nil {
		r.Close()
	}
	return r, both, err
}

// handshake puts bwrap into the control group unless it is inside, writes its arguments, and waits until
// init is ready. So nothing runs without limits, and no process list shows the
// arguments.
//
// The kernel moves a process in 10 ms (an RCU grace period). bwrap waits meanwhile: the
// cgroup namespace of a child that it forks earlier would begin at our group, and show the
// name of the session's.
func (s *Session) handshake(ctx context.Context, plan *plan, args, info *os.File) error {
	err := Expendable(s.bwrap.Process.Pid)
	if err == nil && !s.bwrap.inside {
		err = s.group.add(s.bwrap.Process.Pid)
	}
	if err == nil {
		_, err = io.WriteString(args, strings.Join(plan.args, "\x00")+"\x00")
	}
	if err = errors.Join(err, args.Close()); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { info.SetReadDeadline(time.Now()) })
	defer stop()
	if err := s.findInit(info); err != nil {
		return errors.Join(err, ctx.Err())
	}
	info.Close()
	select {
	case <-s.ready:
		return ctx.Err() // ctx may have ended as well
	case <-s.done:
		return ErrEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// findInit opens a pidfd of init. bwrap reports init's pid, which the kernel could have
// reused. A process that is a child of bwrap after the pidfd was opened is init.
func (s *Session) findInit(r io.Reader) error {
	var info struct {
		PID int `json:"child-pid"`
	}
	text, err := io.ReadAll(io.LimitReader(r, 4<<10))
	if err != nil {
		return fmt.Errorf("pid of init: %w", err)
	}
	if err := json.Unmarshal(text, &info); err != nil || info.PID <= 1 {
		return errors.New("bwrap did not start")
	}
	gone := fmt.Errorf("init is gone: %w", ErrEnded) // it may have ended, or fail has ended it
	fd, err := unix.PidfdOpen(info.PID, 0)
	if err == unix.ESRCH {
		return gone
	}
	if err != nil {
		return fmt.Errorf("pidfd_open of init: %w", err)
	}
	stat, err := proc.ReadStat(info.PID)
	if err != nil || stat.Parent != s.bwrap.Process.Pid || !s.own(info.PID, fd) {
		unix.Close(fd)
		return gone
	}
	return nil
}

// said returns the stderr of bwrap and init as an error. It is not trusted: quoted.
func (s *Session) said() error {
	if text := s.output.text(); text != "" {
		return fmt.Errorf("bwrap: %q", text)
	}
	return nil
}

// tail keeps the first 4 KiB written to it.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if room := 4<<10 - t.buf.Len(); room > 0 {
		t.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(t.buf.String())
}
