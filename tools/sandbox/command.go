package sandbox

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ends are the descriptors of a command, made by init in the sandbox: those
// for the command and those for the daemon.
type ends struct {
	inner []int // 0, 1 and 2 of the command
	outer []int
}

// newEnds makes three pipes, or a terminal.
func newEnds(tty *Size) (e *ends, err error) {
	e = &ends{}
	if tty != nil {
		err = e.terminal(tty)
	} else {
		err = e.pipes()
	}
	if err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *ends) pipes() error {
	for i := range 3 {
		var p [2]int // reading, writing
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return err
		}
		if i > 0 {
			p[0], p[1] = p[1], p[0]
		}
		e.inner, e.outer = append(e.inner, p[0]), append(e.outer, p[1])
	}
	return nil
}

// terminal opens a new one of the sandbox's own devpts, and its slave without
// a path (ioctl_tty(2), TIOCGPTPEER).
func (e *ends) terminal(size *Size) error {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	e.outer = []int{master}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	slave, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER,
		unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return errno
	}
	e.inner = []int{int(slave), int(slave), int(slave)}
	return unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
}

// start executes the command with these ends, as leader of a new session.
func (e *ends) start(r *request) (pid int, err error) {
	argv, env := stringsOf(r.Argv), stringsOf(r.Env)
	program := "/proc/self/exe"
	if argv[0] == Self {
		argv[0] = "scopefs"
	} else if program, err = lookPath(argv[0], env); err != nil {
		return 0, err
	}
	return syscall.ForkExec(program, argv, &syscall.ProcAttr{
		Dir: string(r.Dir), Env: env,
		Files: []uintptr{uintptr(e.inner[0]), uintptr(e.inner[1]), uintptr(e.inner[2])},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: r.TTY != nil, Ctty: 0},
	})
}

func (e *ends) close() {
	for i, fd := range e.inner {
		if i == 0 || fd != e.inner[0] {
			unix.Close(fd)
		}
	}
	for _, fd := range e.outer {
		unix.Close(fd)
	}
}

// lookPath finds a program as execvp(3) would, in the PATH of env. Which one it
// is may change until it is executed; nothing is decided by it.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	var found error = unix.ENOENT
	for _, kv := range env {
		dirs, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range strings.Split(dirs, ":") {
			if dir == "" {
				dir = "."
			}
			file := dir + "/" + name
			info, err := os.Stat(file)
			if err != nil || info.IsDir() {
				continue
			}
			if unix.Access(file, unix.X_OK) == nil {
				return file, nil
			}
			found = unix.EACCES
		}
	}
	return "", found
}

// procStat is what we read of /proc/PID/stat (proc_pid_stat(5)).
type procStat struct {
	state               byte
	parent              int
	session, foreground int
	start               int // in ticks since the host's start
}

func readStat(pid int) (procStat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	// The second field is the name, in parentheses, and may hold any character.
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(f) < 20 {
		return procStat{}, unix.EIO
	}
	s := procStat{state: f[0][0]}
	for i, field := range map[int]*int{1: &s.parent, 3: &s.session, 5: &s.foreground, 19: &s.start} {
		if *field, err = strconv.Atoi(f[i]); err != nil {
			return procStat{}, err
		}
	}
	return s, nil
}

// killSession kills the processes of a session, again while there are some: one
// may fork while we look; and their descendants, whatever session those have
// made. What had lost its parent before that stays, and dies with the sandbox.
func killSession(id int) {
	tree := map[int]bool{}
	for range 100 {
		if !stopTree(id, tree) {
			break
		}
	}
	for pid := range tree {
		unix.Kill(pid, unix.SIGKILL)
	}
	killAll(id)
}

// stopTree stops the processes of a session and their descendants, and reports
// whether there were more than are in the tree already. Who is stopped makes no
// more of them, and stays the parent of those that there are.
func stopTree(id int, tree map[int]bool) (more bool) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return false
	}
	all := map[int]procStat{}
	for _, name := range names {
		pid, err := strconv.Atoi(name.Name())
		if err != nil || pid == 1 {
			continue
		}
		if s, err := readStat(pid); err == nil && s.state != 'Z' && s.state != 'X' {
			all[pid] = s
		}
	}
	for found := true; found; {
		found = false
		for pid, s := range all {
			if !tree[pid] && (s.session == id || tree[s.parent]) {
				unix.Kill(pid, unix.SIGSTOP)
				tree[pid], found, more = true, true, true
			}
		}
	}
	return more
}

// killAll kills the processes of a session.
func killAll(id int) {
	for range 100 {
		unix.Kill(-id, unix.SIGKILL)
		names, err := os.ReadDir("/proc")
		if err != nil {
			return
		}
		alive := false
		for _, name := range names {
			pid, err := strconv.Atoi(name.Name())
			if err != nil || pid == 1 {
				continue
			}
			if s, err := readStat(pid); err == nil && s.session == id && s.state != 'Z' && s.state != 'X' {
				unix.Kill(pid, unix.SIGKILL)
				alive = true
			}
		}
		if !alive {
			return
		}
	}
}
