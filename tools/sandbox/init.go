package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// parkMainThread keeps the main thread from starting commands: in process 1 it is
// the one that the kernel gives orphans to, so that they are told apart by whose
// children they are (Session.forked). Threads that are not it are held until a
// goroutine has got it.
func parkMainThread() {
	got, over := make(chan bool), make(chan struct{})
	defer close(over)
	for main := false; !main; main = <-got {
		go func() {
			runtime.LockOSThread()
			if unix.Gettid() == unix.Getpid() {
				got <- true
				select {}
			}
			got <- false
			<-over
			runtime.UnlockOSThread()
		}()
	}
}

// Init is the main function of process 1 of a sandbox: it starts commands,
// buries the dead, and dies with its control socket. It returns the exit status.
// A program calls it when its first argument is InitArg, before it does anything else.
func Init() int {
	parkMainThread()
	in, err := newInit()
	if err == nil {
		err = in.serve()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, "scopefs init:", err) // into the error of Start
		return 1
	}
	return 0 // and the kernel kills the rest
}

// initProcess is process 1.
type initProcess struct {
	wire *wire

	mu       sync.Mutex
	commands map[uint64]*running // by id
	pids     map[int]*running    // by pid
}

// running is a command whose own process has not been waited for.
type running struct {
	id  uint64
	pid int // of its process, its group and its session
	tty bool
}

// newInit makes this process one that no other in the sandbox can look into,
// and that holds nothing but its control socket.
func newInit() (*initProcess, error) {
	if os.Getpid() != 1 {
		return nil, errors.New("not process 1 of a sandbox")
	}
	// Not dumpable: /proc/1/{exe,root,cwd,fd,mem} are closed to all without
	// CAP_SYS_PTRACE, which nobody in here has (proc(5), ptrace(2)).
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("PR_SET_DUMPABLE: %w", err)
	}
	unix.CloseOnExec(fdControl)
	if err := closeInherited(); err != nil {
		return nil, fmt.Errorf("descriptors: %w", err)
	}
	if err := unix.SetNonblock(fdControl, true); err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	syscall.Umask(0o022) // the daemon's is its own affair
	w, err := newWire(os.NewFile(fdControl, "control"), maxRequest)
	if err != nil {
		return nil, err
	}
	return &initProcess{wire: w, commands: make(map[uint64]*running), pids: make(map[int]*running)}, nil
}

// closeInherited closes what bwrap was given and left open: our program, the
// view from outside. What survived execve(2) has no FD_CLOEXEC; what the Go
// runtime has opened since has, and stays.
func closeInherited() error {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name.Name())
		if err != nil {
			return err
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && fd > 2 && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	return nil
}

func (in *initProcess) serve() error {
	// Every signal, so that none has its default effect: a command may send them
	// to process 1, and the death of that is the end of all. Ignoring them would
	// be passed on to the commands (signal(7)).
	signals := make(chan os.Signal, 1)
	signal.Notify(signals)
	go func() {
		for range signals {
			in.reap()
		}
	}()
	if err := in.wire.send(reply{Op: opReady}); err != nil {
		return err
	}
	for {
		var r request
		files, err := in.wire.receive(&r)
		closeAll(files)
		if err != nil {
			return err
		}
		switch r.Op {
		case opExec:
			err = in.exec(&r)
		case opSignal:
			in.signal(r.ID, r.Signal)
		default:
			err = fmt.Errorf("asked for %q", r.Op)
		}
		if err != nil {
			return err
		}
	}
}

// exec starts a command and tells the daemon. The lock is held until then, so
// that its end is not told first.
func (in *initProcess) exec(r *request) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	ends, err := newEnds(r.TTY)
	if err != nil {
		return in.wire.send(reply{Op: opStarted, ID: r.ID, Errno: errnoOf(err)})
	}
	defer ends.close()
	pid, err := ends.start(r)
	if err != nil {
		return in.wire.send(reply{Op: opStarted, ID: r.ID, Errno: errnoOf(err)})
	}
	c := &running{id: r.ID, pid: pid, tty: r.TTY != nil}
	in.commands[c.id], in.pids[c.pid] = c, c
	return in.wire.send(reply{Op: opStarted, ID: r.ID, PID: pid}, ends.outer...)
}

// reap waits for every process that has ended, our commands and the orphans.
func (in *initProcess) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		in.mu.Lock()
		c := in.pids[pid]
		if c != nil {
			delete(in.pids, pid)
			delete(in.commands, c.id)
		}
		in.mu.Unlock()
		if c == nil {
			continue
		}
		exit := reply{Op: opExited, ID: c.id, Code: status.ExitStatus()}
		if status.Signaled() {
			exit.Signal = status.Signal()
		}
		in.wire.send(exit) // without a daemon serve ends us
	}
}

// signal passes a signal on. A command that has ended gets none: its number
// may be another's by now.
func (in *initProcess) signal(id uint64, sig unix.Signal) {
	in.mu.Lock()
	defer in.mu.Unlock()
	c := in.commands[id]
	if c == nil {
		return
	}
	if sig == unix.SIGKILL {
		killSession(c.pid)
		return
	}
	group := c.pid
	if c.tty {
		if stat, err := readStat(c.pid); err == nil && stat.foreground > 0 {
			group = stat.foreground
		}
	}
	unix.Kill(-group, sig)
}

func errnoOf(err error) unix.Errno {
	var errno unix.Errno
	if errors.As(err, &errno) && errno != 0 {
		return errno
	}
	return unix.EIO
}
