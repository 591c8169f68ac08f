package view

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/descriptors"
	holding "github.com/scopefs/scopefs/internal/holder/wire"
	"github.com/scopefs/scopefs/internal/pidfd"
	"github.com/scopefs/scopefs/internal/privileges"
	"github.com/scopefs/scopefs/internal/reconnect"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/scope/beneath/mounts"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// may returns why the daemon cannot serve the view as its owner. An ordinary user is 0 in
// the user namespace of the daemon.
//
// The owner of a view that was mounted stays: the sockets of the agent are that user's.
func (v *View) may(owner account.User) error {
	v.mu.Lock()
	was := v.owner
	v.mu.Unlock()
	switch {
	case was != nil && owner != *was:
		return fmt.Errorf("the scope of %q belongs to user %d now, and was mounted for user %d: scopefs down, then up",
			v.def.Name, owner.UID, was.UID)
	case v.host.Root:
		return nil
	case v.def.Identity == agents.IdentityCaller:
		return errors.New("identity: caller needs a daemon that runs as root")
	case owner != account.User{}:
		return fmt.Errorf("the scope of %q belongs to another user: run as that user, or as root", v.def.Name)
	}
	return nil
}

// shared reports whether other users than the agent's may access the view. The daemon of
// an ordinary user cannot allow that.
func (v *View) shared() bool {
	return v.def.Identity == agents.IdentityCaller || v.def.View.AllowOther && v.host.Root
}

// served is a view process and the daemon's ends of its sockets.
type served struct {
	Process
	wire  *os.File
	heart *os.File
}

// Process is a process that serves a mount, and that may live on without the daemon.
type Process struct {
	pid   int
	cmd   *exec.Cmd       // nil: the last daemon started it
	ended <-chan struct{} // closed when the process is gone and was waited for
	said  <-chan struct{} // closed when it writes nothing more to its standard error; nil: package os/exec waits for that
	held  []*os.File      // if it may live on: see holder.Place.Hold
}

// The descriptors of Process.held, after those of package holder.
const (
	heldControl = holding.Files + iota // the other end of reconnect.ControlFD
	heldStderr                         // reading end of its standard error
	heldFiles
)

// PID returns the id of the process.
func (p *Process) PID() int { return p.pid }

// Ended returns a channel that is closed when the process is gone and was waited for.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Held returns the files of a process that may live on, for holder.Place.Hold.
func (p *Process) Held() []*os.File { return p.held }

// Pass sends a process of the last daemon the sockets of this one, for reconnect.Take. It does not wait.
func (p *Process) Pass(theirs ...*os.File) error {
	fds, err := descriptors.Numbers(theirs...)
	if err != nil {
		return err
	}
	to, err := descriptors.Numbers(p.held[heldControl])
	if err != nil {
		return err
	}
	return descriptors.WriteTo(to[0], []byte{1}, unix.MSG_DONTWAIT, fds...)
}

// Kill kills the process.
func (p *Process) Kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		return
	}
	pidfd.Kill(p.held[holding.PIDFD])
}

// Adopt continues with a process that the last daemon has left with these files, whose lines it logs.
func (p *Process) Adopt(pid int, held []*os.File, says *LogWriter) error {
	if pid <= 1 || len(held) < heldFiles {
		return errors.New("the holder says nonsense")
	}
	p.pid, p.held, p.ended = pid, held, pidfd.Ended(held[holding.PIDFD])
	p.listen(says)
	return nil
}

// directories are the descriptors of a view process.
type directories struct {
	scope   *beneath.Root
	history *beneath.Root // beside the scope; nil: none
	quota   *os.File      // the page of the agent's quota; nil: none
	lock    *beneath.File // of what the view holds, for the holder; nil: none
}

// spawn starts the view process in namespaces of its own, with directories, the
// connection (nil: it serves no mount), two sockets and its end of the spool (nil:
// none), as the agent's user. With holdable it may live on without this daemon.
func (v *View) spawn(dirs directories, conn, spool *os.File, owner account.User, holdable bool) (p *served, err error) {
	defer conn.Close() // a second copy would keep a dead view's mount waiting; of nil it is an error and no more
	scope, beside, err := dirs.detach()
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, f := range append(beside, scope) {
			f.Close()
		}
	}()
	p, theirs, err := sockets()
	if err != nil {
		return nil, err
	}
	defer closeFiles(theirs)
	_ = unix.SetNonblock(int(theirs[0].Fd()), false)

	cmd, err := child.Command(child.View)
	if err != nil {
		p.close()
		return nil, err
	}
	// A nil file is no descriptor of the process.
	cmd.ExtraFiles = append([]*os.File{scope, conn, theirs[0], theirs[1], theirs[2], spool}, beside...)
	says := &LogWriter{Logger: v.host.Logger.With("agent", string(v.def.Name))}
	if holdable {
		kept, err := p.Hold(cmd)
		if err != nil {
			p.close()
			return nil, err
		}
		defer closeFiles(kept)
	}
	if err = p.passQuota(cmd, dirs.quota); err == nil && holdable {
		err = p.keepLock(dirs.lock)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // the terminal's signals are the daemon's
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWPID,
	}
	if v.host.Root && v.def.Identity != agents.IdentityCaller {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: owner.UID, Gid: owner.GID}
		cmd.SysProcAttr.AmbientCaps = viewCaps(dirs.history != nil)
	}
	if err := p.Start(cmd, says); err != nil {
		p.close()
		return nil, fmt.Errorf("start view process: %w", err)
	}
	if err := sandbox.Expendable(p.pid); err != nil {
		v.host.Logger.Warn("view is spared when memory runs out", "agent", v.def.Name, "err", err)
	}
	return p, nil
}

// Start starts the process, which says lines.
func (p *Process) Start(cmd *exec.Cmd, says *LogWriter) error {
	if cmd.Stderr == nil {
		cmd.Stderr = says
	}
	err := cmd.Start()
	if file, ok := cmd.Stderr.(*os.File); ok {
		file.Close()
	}
	if err != nil {
		return err
	}
	// Not SysProcAttr.PidFD: package os waits with that open file description, which must block, and a thread with it.
	process, err := openPIDFD(cmd.Process.Pid)
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return err
	}
	p.cmd, p.pid = cmd, cmd.Process.Pid
	if p.held != nil {
		p.held[holding.PIDFD] = process
		p.listen(says)
	}
	ended := make(chan struct{})
	p.ended = ended
	held := p.held != nil
	go func() {
		defer close(ended)
		_ = pidfd.Await(process) // an error: it was held, and is not any more
		if !held {
			process.Close()
		}
		_ = cmd.Wait()
	}()
	return nil
}

// openPIDFD returns a pidfd that the runtime polls.
func openPIDFD(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return os.NewFile(uintptr(fd), "process"), nil
}

// keepLock makes the holder have the lock of what the view holds; nil is none.
func (p *served) keepLock(lock *beneath.File) error {
	if lock == nil {
		return nil
	}
	dup, err := lock.Dup()
	if err == nil {
		p.held = append(p.held, os.NewFile(uintptr(dup.FD()), "lock"))
	}
	return err
}

// sockets returns a served with its wire and heart, and the view's ends of both and of the daemon's proc_pid_stat(5), of
// which every user may read the state.
func sockets() (p *served, theirs []*os.File, err error) {
	p = &served{}
	stat, err := os.Open("/proc/self/stat")
	if err != nil {
		return nil, nil, err
	}
	theirs = []*os.File{nil, nil, stat}
	if p.wire, theirs[0], err = descriptors.Pair(unix.SOCK_STREAM); err == nil {
		p.heart, theirs[1], err = descriptors.Pair(unix.SOCK_STREAM)
	}
	if err != nil {
		p.close()
		closeFiles(theirs)
		return nil, nil, err
	}
	return p, theirs, nil
}

// Hold makes the process of a command one that may live on, with the descriptors of package reconnect. The caller closes the process's ends after
// Start, and Held.
func (p *Process) Hold(cmd *exec.Cmd) (theirs []*os.File, err error) {
	beats, theirBeats, err := descriptors.Pair(unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	theirs = append(theirs, theirBeats)
	defer func() {
		if err != nil {
			beats.Close()
			theirBeats.Close()
		}
	}()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		unix.Close(pair[0])
		unix.Close(pair[1])
		return nil, err
	}
	_ = unix.SetNonblock(pipe[1], false)
	p.held = make([]*os.File, heldFiles)
	p.held[holding.Heart] = beats
	p.held[heldControl], p.held[heldStderr] = os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pipe[0]), "stderr")
	theirs = append(theirs, os.NewFile(uintptr(pair[1]), "control"))
	cmd.Stderr = os.NewFile(uintptr(pipe[1]), "stderr")
	for 3+len(cmd.ExtraFiles) < reconnect.HolderFD {
		cmd.ExtraFiles = append(cmd.ExtraFiles, nil)
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, theirs...)
	return theirs, nil
}

// listen logs from now on what the process writes to its standard error.
func (p *Process) listen(says *LogWriter) {
	said := make(chan struct{})
	p.said = said
	go func() {
		defer close(said)
		_, _ = io.Copy(says, p.held[heldStderr])
	}()
}

// close closes the daemon's ends of the sockets, and the held files of a process that did not start.
func (p *served) close() {
	closeFiles([]*os.File{p.wire, p.heart})
	if p.pid == 0 {
		closeFiles(p.held)
	}
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// detach returns the scope as a detached mount. With a history both are in one detached mount, and beside has the history and
// the mount.
func (d directories) detach() (scope *os.File, beside []*os.File, err error) {
	if d.history == nil {
		tree, err := mounts.Detach(d.scope)
		return os.NewFile(uintptr(tree), "scope"), nil, err
	}
	pair, err := mounts.DetachWith(d.scope, d.history)
	if err != nil {
		return nil, nil, fmt.Errorf("history: %w", err)
	}
	beside = []*os.File{os.NewFile(uintptr(pair.Beside), "history"), os.NewFile(uintptr(pair.Mount), "mount")}
	return os.NewFile(uintptr(pair.Scope), "scope"), beside, nil
}

// quit ends the process and returns how it ended; it waits a second at most. The mount must
// be aborted before: a thread that waits for a client would keep the process alive.
func (p *served) quit() string {
	p.close()
	p.Kill()
	return p.How()
}

// How returns how the process has ended, within reapTime.
func (p *Process) How() string {
	select {
	case <-p.ended:
		if p.cmd == nil {
			return "its status is the last daemon's to know"
		}
		return p.cmd.ProcessState.String()
	case <-time.After(reapTime):
		return "it was killed and is not gone yet"
	}
}

// await waits for the end of the process, and reports whether it has ended. It gives up after
// most, or after stuckLooks looks at a process that no signal ends.
func (p *served) await(most time.Duration) bool {
	const look, stuckLooks = 100 * time.Millisecond, 10
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for stuck, end := 0, time.Now().Add(most); stuck < stuckLooks && time.Now().Before(end); {
		select {
		case <-p.ended:
			return true
		case <-ticker.C:
		}
		if stuck++; !sandbox.Stuck(p.pid) {
			stuck = 0
		}
	}
	return p.gone()
}

// gone reports whether the process is gone.
func (p *served) gone() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// LogWriter logs the lines that a process writes.
type LogWriter struct {
	Logger *slog.Logger
	Name   string // of the process; "": view
	line   []byte
}

func (l *LogWriter) Write(p []byte) (int, error) {
	for part := range bytes.Lines(p) {
		l.line = append(l.line, part...)
		if bytes.HasSuffix(part, []byte("\n")) || len(l.line) > maxLogLine {
			l.Logger.Info(cmp.Or(l.Name, "view"), "says", string(bytes.TrimSpace(l.line)))
			l.line = l.line[:0]
		}
	}
	return len(p), nil
}

const maxLogLine = 64 << 10 // bytes; a longer line is logged in pieces

// viewCaps are the capabilities that a view is started with; it drops what it
// does not need when it has made the scope its root. It enters the scope whatever
// mode the directory has: CAP_DAC_READ_SEARCH. With a history it calls chroot(2).
func viewCaps(history bool) []uintptr {
	caps := []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_DAC_READ_SEARCH}
	if history {
		caps = append(caps, unix.CAP_SYS_CHROOT)
	}
	return caps
}

// Landlock returns the kernel's ABI of Landlock, and whether views use it.
func Landlock() (abi int, used bool, err error) {
	_, abi, err = privileges.Landlocked()
	return abi, abi >= privileges.RenameABI, err
}
