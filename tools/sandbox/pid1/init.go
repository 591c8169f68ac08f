package pid1

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/packets"
	"github.com/scopefs/scopefs/internal/proc"
	"github.com/scopefs/scopefs/internal/thread"
)

const (
	// ArgListen as an argument makes Main send a listening socket with OpReady.
	ArgListen = "listen"

	// FileWorker as the first word of a command is the program whose descriptor comes with the request.
	FileWorker = "scopefs:files"
)

// Main is the main function of process 1 of a sandbox, and of leaders: see lead. Process 1 starts commands, reaps
// processes, and returns the exit status when its control socket ends. The main goroutine
// calls it.
//
// The main thread starts no commands. The kernel reparents orphans to the main thread, so
// the daemon distinguishes orphans from commands by the parent thread
// (sandbox.Session.TagOf). The main goroutine begins on the main thread, unless the
// scheduler has moved it: then the program starts again. Waiting for the main thread would
// take threads, which the limit of processes counts.
func Main() int {
	runtime.LockOSThread()
	leads := slices.Contains(os.Args, argLead)
	if !leads && unix.Gettid() != unix.Getpid() {
		return told(fmt.Errorf("start again: %w", unix.Exec("/proc/self/exe", os.Args, os.Environ())))
	}
	thread.Name("scopefs-init")
	// The /proc/1/{exe,root,cwd,fd,mem} of an undumpable process need CAP_SYS_PTRACE, which no process of the sandbox has
	// (proc(5), ptrace(2)). Nor does the kernel dump the core of a leader that ends by the signal of its command.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return told(fmt.Errorf("PR_SET_DUMPABLE: %w", err))
	}
	wire, err := packets.Open(ControlFD, packets.Max)
	if err != nil {
		return told(err)
	}
	if leads {
		return lead(wire)
	}
	in, err := newInit(wire)
	if err != nil {
		return told(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- in.serve(slices.Contains(os.Args, ArgListen))
		_ = unix.Shutdown(ControlFD, unix.SHUT_RDWR) // wakes hangUp
	}()
	hangUp()
	select {
	case err := <-ended:
		return told(err)
	default:
		return 0 // the kernel kills the other processes
	}
}

// told prints why process 1 ends, which Host.Start returns in its error, and returns the exit status.
func told(err error) int {
	if errors.Is(err, io.EOF) {
		return 0
	}
	fmt.Fprintln(os.Stderr, "scopefs init:", err)
	return 1
}

// hangUp waits until the control socket has no other end: POLLHUP in poll(2). Receive would learn it later, or never: a command
// that stops the child of an OpExec before it executes blocks serve.
func hangUp() {
	polled := []unix.PollFd{{Fd: ControlFD}}
	for polled[0].Revents == 0 {
		_, _ = unix.Poll(polled, -1)
	}
}

// The runtime ends a program when it cannot start a thread, and the commands may have
// all processes and threads that the sandbox's limit allows.
const (
	MaxRunning   = 2 // GOMAXPROCS of init: hangUp runs while ForkExec waits for a child that a command has stopped
	spareThreads = 6 // threads that wait for work; blocking system calls take them
)

// reserveThreads has the runtime start n threads, which it keeps.
func reserveThreads(n int) {
	var started sync.WaitGroup
	release := make(chan struct{})
	for range n {
		started.Add(1)
		go func() {
			runtime.LockOSThread()
			started.Done()
			<-release
			runtime.UnlockOSThread()
		}()
	}
	started.Wait()
	close(release)
}

// initProcess is process 1.
type initProcess struct {
	wire *packets.Wire

	mu       sync.Mutex
	commands map[uint64]*running // by id
	pids     map[int]*running    // by pid
	exits    []Reply             // the last ones, the oldest first: the next daemon gets them again
	last     uint64              // id of the last command
}

// maxExits is the number of exit statuses that are kept for the next daemon.
const maxExits = 256

// running is a command whose own process has not been reaped.
type running struct {
	id         uint64
	pid, group int // of the process, which leads the session; of the command: another one on a terminal, see lead
	tty        bool
	stopped    bool   // the daemon was told
	turn       uint64 // of the daemon's last SIGCONT
}

// newInit closes every inherited descriptor but the control socket.
func newInit(wire *packets.Wire) (*initProcess, error) {
	if os.Getpid() != 1 {
		return nil, errors.New("not process 1 of a sandbox")
	}
	if err := closeInherited(); err != nil {
		return nil, fmt.Errorf("descriptors: %w", err)
	}
	syscall.Umask(0o022) // not the daemon's
	return &initProcess{wire: wire, commands: make(map[uint64]*running), pids: make(map[int]*running)}, nil
}

// closeInherited closes the descriptors that bwrap left open: the program, and the
// view as the host sees it. A descriptor that survived execve(2) has no FD_CLOEXEC.
// The Go runtime's own descriptors have it and stay open.
func closeInherited() error {
	names, err := os.ReadDir("/proc/self/fd")
	for _, name := range names {
		fd, wrong := strconv.Atoi(name.Name())
		err = errors.Join(err, wrong)
		if flags, wrong := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); wrong == nil && fd > 2 && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	return err
}

func (in *initProcess) serve(listen bool) error {
	signals := make(chan os.Signal, 1)
	if err := survive(signals); err != nil {
		return err
	}
	go func() {
		for range signals {
			in.reap()
		}
	}()
	if err := in.ready(listen); err != nil {
		return err
	}
	reserveThreads(spareThreads) // while the daemon prepares the first command
	for {
		var r Request
		files, err := in.wire.Receive(&r)
		if err != nil {
			return err
		}
		switch r.Op {
		case OpExec:
			err = in.exec(&r, files)
		case OpSignal:
			in.signal(&r)
		case OpState:
			err = in.state(r.Keep, r.Turn)
		default:
			err = fmt.Errorf("asked for %q", r.Op)
		}
		descriptors.Close(files)
		if err != nil {
			return err
		}
	}
}

// exec starts a command and sends OpStarted. It holds the lock meanwhile, so that
// reap cannot send OpExited first.
func (in *initProcess) exec(r *Request, program []*os.File) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.last = max(in.last, r.ID) // the daemon may send two in another order than it numbers them
	var ends ends
	defer ends.close()
	pid, group, err := ends.start(r, program)
	if err != nil {
		return in.wire.Send(failed(r.ID, err))
	}
	c := &running{id: r.ID, pid: pid, group: group, tty: r.TTY != nil}
	in.commands[c.id], in.pids[c.pid] = c, c
	return in.wire.Send(Reply{Op: OpStarted, ID: r.ID, PID: pid}, ends.outer...)
}

// reap waits for every process that has ended, commands and orphans, and for commands that have stopped.
func (in *initProcess) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WUNTRACED, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		in.mu.Lock()
		switch c := in.pids[pid]; {
		case c == nil:
		case !status.Stopped():
			in.exited(c, status)
		case c.tty && !c.stopped:
			c.stopped = true
			_ = in.wire.Send(Reply{Op: OpStopped, ID: c.id, Turn: c.turn})
		}
		in.mu.Unlock()
	}
}

// exited reports the end of a command. The caller holds mu.
func (in *initProcess) exited(c *running, status unix.WaitStatus) {
	delete(in.pids, c.pid)
	delete(in.commands, c.id)
	exit := Reply{Op: OpExited, ID: c.id, Code: status.ExitStatus()}
	if status.Signaled() {
		exit.Signal = status.Signal()
	}
	in.exits = append(in.exits[max(0, len(in.exits)+1-maxExits):], exit)
	_ = in.wire.Send(exit) // without a daemon, serve returns
}

// state kills the commands but those to keep, whose files the next daemon has, and answers that daemon.
func (in *initProcess) state(keep []uint64, turn uint64) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, c := range in.commands {
		if !slices.Contains(keep, c.id) {
			c.kill()
		}
	}
	err := in.wire.Send(Reply{Op: OpState, ID: in.last, Turn: turn})
	exits := slices.Clone(in.exits)
	for _, id := range keep {
		if in.commands[id] == nil && !slices.ContainsFunc(exits, func(r Reply) bool { return r.ID == id }) {
			exits = append(exits, Reply{Op: OpExited, ID: id, Errno: unix.ESRCH})
		}
	}
	for _, c := range in.commands {
		if c.stopped && slices.Contains(keep, c.id) { // the daemon before may not have been told
			exits = append(exits, Reply{Op: OpStopped, ID: c.id, Turn: c.turn})
		}
	}
	for _, exit := range exits {
		if err == nil {
			err = in.wire.Send(exit)
		}
	}
	return err
}

// kill kills the processes of the command's session. It stops them first, which is not for the daemon.
func (c *running) kill() {
	c.stopped = true
	killSession(c.pid)
}

// signal sends a signal to a command's process group; on a terminal to its
// foreground group. A stop and its end are the command's own as well, which may wait in the background. A command that has ended
// gets none: the kernel may have reused its pid.
func (in *initProcess) signal(r *Request) {
	in.mu.Lock()
	defer in.mu.Unlock()
	c := in.commands[r.ID]
	if c == nil {
		return
	}
	groups := []int{c.group}
	if stat, err := proc.ReadStat(c.pid); c.tty && err == nil && stat.Foreground > 0 {
		groups = []int{stat.Foreground, c.group}
	}
	switch r.Signal {
	case unix.SIGKILL:
		c.kill()
		return
	case unix.SIGCONT:
		c.stopped, c.turn = false, max(c.turn, r.Turn)
		unix.Kill(c.pid, unix.SIGCONT) // a leader that has stopped with the command
	case unix.SIGSTOP:
	default:
		groups = groups[:1]
	}
	for _, group := range groups {
		unix.Kill(-group, r.Signal)
	}
}

// failed returns the reply to the request of a command that did not start.
func failed(id uint64, err error) Reply {
	errno, ok := errors.AsType[unix.Errno](err)
	if !ok || errno == 0 {
		errno = unix.EIO
	}
	_, dir := errors.AsType[DirError](err)
	return Reply{Op: OpStarted, ID: id, Errno: errno, Dir: dir}
}
