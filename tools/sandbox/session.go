package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// answerTime is how long init may take to start a command. It does in
// milliseconds, unless another command stops the child before it executes
// (SIGSTOP, which nobody can block): then init waits as long as the child does.
const answerTime = 20 * time.Second

// Session is one running sandbox.
type Session struct {
	host   *Host
	spec   Spec
	group  *group
	killed int  // of group.kills, seen already; guarded by mu
	untold bool // see tellMemory; guarded by mu
	output tail // what bwrap and init write: why a start failed
	wire   *wire
	bwrap  *exec.Cmd

	ownGroup bool // the group ends with the session

	ready chan struct{} // closed when init is there
	done  chan struct{} // closed when nothing of it is left

	answerTime time.Duration // for init to start a command

	mu      sync.Mutex
	pid     int // of init, in our pid namespace
	pidfd   int // of init, or -1
	procs   map[uint64]*Process
	tags    tags
	last    uint64
	ended   bool
	closing bool
	err     error // why it ended, if not by Close
}

func newSession(h *Host, spec Spec, group *group) *Session {
	return &Session{
		host: h, spec: spec, group: group, killed: group.kills(), pidfd: -1, procs: make(map[uint64]*Process),
		tags:  tags{commands: make(map[int]*tagged)},
		ready: make(chan struct{}), done: make(chan struct{}), answerTime: answerTime,
	}
}

// PID is the host's number of the session's init.
func (s *Session) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid
}

// Limiter names what enforces the limits: "cgroup v2", "cgroup v1", or "none"
// when none were asked.
func (s *Session) Limiter() string { return s.group.kind() }

// Done is closed when the session has ended and every process of it is gone.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err says why the session ended; nil while it lives and after Close.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close kills everything in the session and waits until it is gone.
func (s *Session) Close() error {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.kill()
	<-s.done
	return s.removeGroup()
}

// removeGroup removes the session's own control group.
func (s *Session) removeGroup() error {
	if !s.ownGroup {
		return nil
	}
	return s.group.remove()
}

// outOfMemory reports whether the kernel has killed processes of the session's group since
// it was last asked. The caller holds mu, and calls tellMemory without it.
func (s *Session) outOfMemory() bool {
	n := s.group.kills()
	more := n > s.killed
	s.killed = n
	s.untold = s.untold || more
	return more
}

// tellMemory has the owner of the session know of what outOfMemory found.
func (s *Session) tellMemory() {
	s.mu.Lock()
	tell := s.untold && s.spec.OutOfMemory != nil
	s.untold = false
	s.mu.Unlock()
	if tell {
		s.spec.OutOfMemory(s)
	}
}

// kill kills init, and with it all processes of its pid namespace.
func (s *Session) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pidfd >= 0 { // bwrap waits for it, and follows
		unix.PidfdSendSignal(s.pidfd, unix.SIGKILL, nil, 0) // ESRCH: gone already
	} else {
		s.bwrap.Process.Kill()
	}
}

// own keeps the descriptor of init, unless the session has ended meanwhile.
func (s *Session) own(pid, pidfd int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.pid, s.pidfd = pid, pidfd
	}
	return !s.ended
}

// fail ends the session for a reason.
func (s *Session) fail(err error) {
	s.mu.Lock()
	if s.err == nil && !s.ended && !s.closing {
		s.err = err
	}
	s.mu.Unlock()
	s.kill()
}

// wait sees the session to its end.
func (s *Session) wait() {
	reader := make(chan struct{})
	go func() {
		defer close(reader)
		s.read()
	}()
	s.bwrap.Wait() // how it ended tells nothing: init is its child
	s.kill()       // init dies with bwrap by PR_SET_PDEATHSIG, which it could have cleared
	s.mu.Lock()
	pidfd := s.pidfd
	s.pidfd, s.ended = -1, true
	s.mu.Unlock()
	if pidfd >= 0 {
		awaitExit(pidfd)
		unix.Close(pidfd)
	}
	s.wire.conn.Close()
	<-reader
	s.mu.Lock()
	if memory := s.outOfMemory(); s.err == nil && !s.closing {
		s.err = errors.Join(errors.New("init was killed"), s.said())
		if memory {
			s.err = errors.Join(ErrOutOfMemory, s.err)
		}
	}
	for _, p := range s.procs {
		p.finish(Exit{Code: -1, Signal: unix.SIGKILL}, ErrEnded)
	}
	clear(s.procs)
	s.mu.Unlock()
	s.tellMemory()
	s.removeGroup() // Close tells of an error
	s.host.release(s)
	close(s.done)
}

// awaitExit waits until a process is dead. Process 1 of a pid namespace is dead
// when all others are (pid_namespaces(7)).
func awaitExit(pidfd int) {
	for range 100 {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 100)
		if n > 0 || err != nil && err != unix.EINTR {
			return
		}
	}
}

// read takes what init says until the socket ends or init says what it must not.
func (s *Session) read() {
	for {
		var r reply
		files, err := s.wire.receive(&r)
		if err == nil {
			err = s.handle(r, files)
			s.tellMemory()
		}
		if err == nil {
			continue
		}
		s.mu.Lock()
		// ECONNRESET is the EOF of an init that was killed before it had read all.
		if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) && !s.ended {
			s.err = err
		}
		s.mu.Unlock()
		s.kill()
		return
	}
}

// handle judges one message of init. An error is the end of the session.
func (s *Session) handle(r reply, files []*os.File) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.procs[r.ID]
	switch {
	case r.Op == opReady && s.last == 0 && len(files) == 0:
		select {
		case <-s.ready:
		default:
			close(s.ready)
			return nil
		}
	case r.Op == opStarted && p != nil && !p.running && r.Errno != 0 && len(files) == 0:
		delete(s.procs, r.ID)
		p.finish(Exit{Code: -1}, r.Errno)
		return nil
	case r.Op == opStarted && p != nil && !p.running && r.Errno == 0:
		if err := p.take(files); err != nil {
			closeAll(files)
			return err
		}
		p.tagged = s.tags.started(r.PID, p.tag)
		return nil
	case r.Op == opExited && p != nil && p.running && len(files) == 0:
		delete(s.procs, r.ID)
		s.tags.exited(p.tagged)
		memory := s.outOfMemory()
		p.finish(Exit{Code: r.Code, Signal: r.Signal, OutOfMemory: memory && (r.Code != 0 || r.Signal != 0)}, nil)
		return nil
	}
	closeAll(files)
	return fmt.Errorf("init said %q of command %d out of turn", r.Op, r.ID)
}

// Exec starts a command. ctx bounds the command's life, as in
// exec.CommandContext. A command that does not start returns the errno of why
// (unix.ENOENT: no such program, or no such directory). What a command leaves
// running in the background lives until the session ends.
func (s *Session) Exec(ctx context.Context, c Command) (*Process, error) {
	p, err := s.exec(ctx, c)
	if err != nil {
		name := "" // the rest may hold secrets
		if len(c.Argv) > 0 {
			name = c.Argv[0]
		}
		where := "" // what is not found may be the directory
		if c.Dir != "" {
			where = fmt.Sprintf(" in %q", c.Dir)
		}
		return nil, fmt.Errorf("exec %q%s in sandbox of %q: %w", name, where, s.spec.Agent, err)
	}
	return p, nil
}

func (s *Session) exec(ctx context.Context, c Command) (*Process, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir := c.Dir
	if !path.IsAbs(dir) {
		dir = path.Join(s.spec.dir(), dir)
	}
	p := &Process{session: s, tty: c.TTY != nil, tag: c.Tag, started: make(chan struct{}), exited: make(chan struct{})}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil, ErrEnded
	}
	s.last++
	p.id = s.last
	s.procs[p.id] = p
	s.mu.Unlock()

	err := s.wire.send(request{Op: opExec, ID: p.id, Argv: bytesOf(c.Argv),
		Env: bytesOf(environ(s.spec.Env, c.Env)), Dir: []byte(dir), TTY: c.TTY})
	if errors.Is(err, ErrTooLarge) {
		s.forget(p)
		return nil, err
	}
	if err != nil { // init does not listen
		s.kill()
		return nil, errors.Join(ErrEnded, err)
	}
	timeout := s.spec.Limits.Timeout
	if c.Lasting {
		timeout = 0
	}
	go p.watch(ctx, timeout)
	late := time.AfterFunc(s.answerTime, func() { s.fail(errors.New("init did not answer")) })
	defer late.Stop()
	select {
	case <-p.started:
		return p, nil
	case <-p.exited:
	case <-ctx.Done(): // watch kills it
		go func() { <-p.exited; p.Close() }()
		return nil, ctx.Err()
	}
	select {
	case <-p.started: // and ended
		return p, nil
	default:
		return nil, p.err
	}
}

func (s *Session) forget(p *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.procs, p.id)
}
