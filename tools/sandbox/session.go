package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/packets"
	"github.com/scopefs/scopefs/internal/proc"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

// answerTime bounds the start of a command by init. It takes milliseconds, unless
// another command stops the child before it executes (SIGSTOP cannot be blocked): then
// init blocks as long as the child.
const answerTime = 20 * time.Second

// bwrapTime is how long bwrap may take to end after init.
const bwrapTime = 500 * time.Millisecond

// Session is one running sandbox.
type Session struct {
	host   *Host
	spec   Spec
	group  *group
	killed int    // of group.kills, seen already; guarded by mu
	untold bool   // see tellMemory; guarded by mu
	output tail   // stderr of bwrap and init: why a start failed
	asked  uint64 // Turn of the OpState of Adopt: the daemon before may have died before it read the answer to its own
	wire   *packets.Wire
	bwrap  begun           // without a Cmd: an earlier daemon's
	reaped bool            // bwrap, or it will be at once; guarded by mu
	gone   <-chan struct{} // without bwrap: closed when init is gone

	lacks []string // see Lacks

	ownGroup bool // the group ends with the session
	stuck    bool // its processes outlive it: see awaitExit; set before done is closed

	ready chan struct{} // closed when init is ready
	done  chan struct{} // closed when all processes are gone

	answerTime    time.Duration // for init to start a command
	reportTimeout time.Duration // of TagOf

	mu      sync.Mutex
	pid     int          // of init, in our pid namespace
	pidfd   int          // of init, or -1
	listens net.Listener // of Spec.Proxy, from ready on
	procs   map[uint64]*Process
	tags    tags
	last    uint64
	earlier uint64 // the last command of an earlier daemon; 0: none
	ended   bool
	closing bool
	left    bool  // to the next daemon
	told    bool  // init has answered this daemon: see Host.Adopt
	err     error // why it ended; nil after Close
}

func newSession(h *Host, spec Spec, group *group) *Session {
	return &Session{
		host: h, spec: spec, group: group, killed: group.kills(), pidfd: -1, procs: make(map[uint64]*Process),
		tags:  tags{commands: make(map[int]*tagged)},
		told:  true,
		ready: make(chan struct{}), done: make(chan struct{}), answerTime: answerTime, reportTimeout: reportTimeout,
	}
}

// Lacks returns a line for each of Spec.Devices that this host has not, and for each that the user cannot open.
func (s *Session) Lacks() []string { return s.lacks }

// PID returns the pid of the session's init on the host.
func (s *Session) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid
}

// Listener returns the socket that listens at ProxyAddress in the session's network; nil
// without Spec.Proxy. It ends with the session.
func (s *Session) Listener() net.Listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listens
}

// Limiter returns the mechanism that enforces the limits: "cgroup v2", "cgroup v1",
// or "none" without limits.
func (s *Session) Limiter() string { return s.group.kind() }

// Done returns a channel that is closed when every process of the session is gone, or when it was left to the next daemon.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err returns why the session ended; nil while it runs and after Close.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close kills every process of the session and waits for their end.
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
	if s.stuck {
		return errors.New("the processes are killed, and the kernel has not ended them: they wait for a disk")
	}
	if !s.ownGroup {
		return nil
	}
	return s.group.remove()
}

// outOfMemory reports whether the OOM killer has killed processes of the session's
// group since the last call. The caller holds mu, and calls tellMemory without it.
func (s *Session) outOfMemory() bool {
	n := s.group.kills()
	more := n > s.killed
	s.killed = n
	s.untold = s.untold || more
	return more
}

// tellMemory calls Spec.OutOfMemory when outOfMemory has found kills.
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
	if s.left {
		return
	}
	if s.pidfd >= 0 { // bwrap ends with it, unless it is stopped
		unix.PidfdSendSignal(s.pidfd, unix.SIGKILL, nil, 0) // ESRCH: it has ended
		if s.bwrap.Cmd != nil {
			time.AfterFunc(bwrapTime, func() { _ = s.bwrap.Process.Kill() }) // an error: it has ended
		}
	} else if s.bwrap.Cmd != nil {
		s.killStart()
	}
}

// killStart kills bwrap and the child that is to be init, whose pid may not be known. The child of a bwrap that dies before it
// releases the child waits forever: bubblewrap's child_wait_fd, an eventfd, has no end of file. The child is in bwrap's process
// group until it is released. The caller holds mu.
func (s *Session) killStart() {
	if !s.reaped { // so its pid is no other process's
		unix.Kill(-s.bwrap.Process.Pid, unix.SIGKILL) // ESRCH: all have ended
	}
}

// own stores the pid and pidfd of init. It reports false when the session has ended.
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

// wait waits for the end of bwrap and init, then releases the session.
func (s *Session) wait() {
	reader := make(chan struct{})
	go func() {
		defer close(reader)
		s.read()
	}()
	if s.bwrap.Cmd != nil {
		s.reap()
	} else {
		<-s.gone
	}
	s.kill() // bwrap may have been killed alone
	s.mu.Lock()
	if s.left { // leave has done the rest
		s.mu.Unlock()
		return
	}
	pidfd := s.pidfd
	s.pidfd, s.ended = -1, true
	s.mu.Unlock()
	if pidfd >= 0 {
		s.stuck = !awaitExit(s.pid, pidfd)
		unix.Close(pidfd)
	}
	s.wire.Close()
	<-reader
	s.mu.Lock()
	if s.listens != nil {
		s.listens.Close() // the user may have closed it
	}
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
	_ = s.removeGroup() // Close returns its error
	s.host.release(s)
	close(s.done)
}

// reap waits for the end of bwrap. Its status says nothing of init.
func (s *Session) reap() {
	for unix.Waitid(unix.P_PID, s.bwrap.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	s.mu.Lock()
	if s.pidfd < 0 {
		s.killStart()
	}
	s.reaped = true
	s.mu.Unlock()
	_ = s.bwrap.Wait()
}

// awaitExit waits at most 10 s for init to end, which was killed, and reports whether it has.
// Process 1 of a pid namespace ends after all others of it (pid_namespaces(7)). awaitExit gives
// up after 20 looks at a process that no signal ends.
func awaitExit(pid, pidfd int) bool {
	const most = 20
	for stuck, looks := 0, 0; stuck < most && looks < 100; looks++ {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 100)
		if n > 0 || err != nil && err != unix.EINTR {
			return true
		}
		if stuck++; !Stuck(pid) {
			stuck = 0
		}
	}
	return false
}

// Stuck reports whether a thread of a process, or of one below it, is in the kernel where no
// signal ends it, such as in a write to a frozen disk: state D, proc_pid_stat(5).
func Stuck(pid int) bool {
	const most = 10_000 // the processes of a sandbox make any tree
	left := []int{pid}
	for at := 0; at < len(left) && at < most; at++ {
		for _, tid := range proc.Threads(left[at]) {
			if s, err := proc.ReadThread(left[at], tid); err == nil && s.State == 'D' {
				return true
			}
		}
		left = append(left, childrenOf(left[at])...)
	}
	return false
}

// read handles the messages of init until the socket ends or a message is out of turn.
func (s *Session) read() {
	for {
		var r pid1.Reply
		files, err := s.wire.Receive(&r)
		if err == nil {
			err = s.handle(r, files)
			s.tellMemory()
		}
		if err == nil {
			continue
		}
		s.mu.Lock()
		// ECONNRESET is the EOF of an init that was killed with unread messages.
		if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) && !s.ended && !s.left {
			s.err = err
		}
		s.mu.Unlock()
		s.kill()
		return
	}
}

// handle checks one message of init against the state of its command. An error ends
// the session.
func (s *Session) handle(r pid1.Reply, files []*os.File) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.procs[r.ID]
	switch {
	case s.left || !s.told && (r.Op != pid1.OpState || r.Turn != s.asked && r.Turn != 0): // the daemon before may have handled it
		descriptors.Close(files)
		return nil
	case r.Op == pid1.OpState && !s.told && len(files) == 0 && r.ID >= s.last:
		s.told, s.last, s.earlier = true, r.ID, r.ID
		close(s.ready)
		return nil
	case r.Op == pid1.OpReady && s.last == 0:
		select {
		case <-s.ready:
		default:
			if err := s.takeListener(files); err != nil {
				descriptors.Close(files)
				return err
			}
			close(s.ready)
			return nil
		}
	case r.Op == pid1.OpStarted && p != nil && !p.running && r.Errno != 0 && len(files) == 0:
		delete(s.procs, r.ID)
		p.finish(Exit{Code: -1}, r.Err())
		return nil
	case r.Op == pid1.OpStarted && p != nil && !p.running && r.Errno == 0:
		if err := p.take(files); err != nil {
			descriptors.Close(files)
			return err
		}
		p.tagged = s.tags.started(r.PID, p.tag)
		return nil
	case r.Op == pid1.OpStopped && p != nil && p.running && len(files) == 0:
		p.stop(r.Turn)
		return nil
	case r.Op == pid1.OpExited && p != nil && p.running && len(files) == 0:
		delete(s.procs, r.ID)
		s.tags.exited(p.tagged)
		memory := s.outOfMemory()
		if r.Errno != 0 {
			p.finish(Exit{Code: -1}, errStatus)
			return nil
		}
		p.finish(Exit{Code: r.Code, Signal: r.Signal, OutOfMemory: memory && (r.Code != 0 || r.Signal != 0)}, nil)
		return nil
	}
	descriptors.Close(files)
	if r.Op == pid1.OpExited && p == nil && r.ID > 0 && r.ID <= s.earlier {
		return nil
	}
	return fmt.Errorf("init said %q of command %d out of turn", r.Op, r.ID)
}

// Exec starts a command. ctx bounds the command's life, as in exec.CommandContext.
// When the command does not start, the error wraps the errno (unix.ENOENT: no such
// program), for its directory in a pid1.DirError. Processes that a command leaves in the background
// live until the session ends.
func (s *Session) Exec(ctx context.Context, c Command) (*Process, error) {
	p, err := s.exec(ctx, c)
	if err != nil {
		name := "" // other arguments may hold secrets
		if len(c.Argv) > 0 {
			name = c.Argv[0]
		}
		where := "" // ENOENT may be of the directory
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
	var program []int // that init executes
	if c.Argv[0] == FileWorker {
		f, err := s.host.files.file()
		if err != nil {
			return nil, err
		}
		program = append(program, int(f.Fd()))
	}
	select {
	case <-s.ready: // init has answered this daemon: see Host.Adopt
	case <-s.done:
		return nil, ErrEnded
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p := &Process{session: s, tty: c.TTY != nil, socket: c.socket, tag: c.Tag, began: time.Now(),
		started: make(chan struct{}), stopped: make(chan uint64, 1), exited: make(chan struct{})}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil, ErrEnded
	}
	s.last++
	p.id = s.last
	s.procs[p.id] = p
	s.mu.Unlock()

	err := s.wire.Send(pid1.Request{Op: pid1.OpExec, ID: p.id, Argv: bytesOf(c.Argv),
		Env: bytesOf(s.spec.environ(c.Env)), Dir: []byte(dir), TTY: c.TTY, Socket: c.socket}, program...)
	if errors.Is(err, descriptors.ErrTruncated) {
		s.forget(p)
		return nil, ErrTooLarge
	}
	if err != nil { // init does not read
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
	case <-p.started: // and it has ended
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

// bytesOf returns words as init takes them: a word need not be UTF-8.
func bytesOf(words []string) [][]byte {
	b := make([][]byte, len(words))
	for i, w := range words {
		b[i] = []byte(w)
	}
	return b
}
