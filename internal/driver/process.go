package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/liveness"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// A Binary is the program's file, which stays open: a daemon starts the program that was installed with it, from whatever directory.
type Binary struct {
	name string
	file *os.File
}

// OpenBinary opens a program by its name: the file at place, or for "" the one that is installed with this
// program.
func OpenBinary(name, place string) (*Binary, error) {
	file, err := child.Program(cmp.Or(place, name))
	if err != nil {
		return nil, err
	}
	return &Binary{name, file}, nil
}

// Path returns a path that other users of this process can execute, too.
func (b *Binary) Path() string { return child.Path(b.file) }

// A User is whom the program runs as.
type User struct{ UID, GID uint32 }

// Process is the program that runs, and the daemon's end of its connection.
type Process struct {
	*Conn
	name  string
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process is gone and was waited for
}

// closeTime is how long the program may take to close its stores.
const closeTime = 6 * time.Second

// Start starts the program, which confines itself at its first call. It runs as a user, nil being the
// daemon's own.
func (b *Binary) Start(user *User, grants Grants, stderr io.Writer) (_ *Process, err error) {
	var ours, theirs [3]*os.File // of socketFD, connFD and heartFD
	defer func() {
		for i := range ours {
			theirs[i].Close()
			if err != nil {
				ours[i].Close()
			}
		}
	}()
	for i, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET, unix.SOCK_STREAM} {
		if ours[i], theirs[i], err = descriptors.Pair(kind); err != nil {
			return nil, err
		}
	}
	socket, err := net.FileConn(ours[1])
	if err != nil {
		return nil, err
	}
	ours[1].Close()
	cmd := exec.Command(b.Path())
	cmd.Args, cmd.Dir, cmd.Env, cmd.Stderr = []string{b.name}, "/", environment(), stderr
	cmd.ExtraFiles = theirs[:]
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // the terminal's signals are the daemon's
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWPID,
	}
	// For its mounts, and the way to them; it drops both.
	caps := []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_DAC_READ_SEARCH}
	if uid, gid := os.Geteuid(), os.Getegid(); user != nil {
		cmd.SysProcAttr.Credential, cmd.SysProcAttr.AmbientCaps = &syscall.Credential{Uid: user.UID, Gid: user.GID}, caps
	} else if uid != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		cmd.SysProcAttr.AmbientCaps = caps
	}
	if err := cmd.Start(); err != nil {
		socket.Close()
		return nil, fmt.Errorf("start %s: %w", b.name, err)
	}
	p := &Process{name: b.name, Conn: NewConn(ours[0], grants.Handlers(socket.(*net.UnixConn))), cmd: cmd, ended: make(chan struct{})}
	go func() { _ = p.Serve() }()
	go func() {
		defer close(p.ended)
		_ = cmd.Wait()
		p.Conn.Close()
		socket.Close()
		ours[2].Close()
	}()
	go p.watch(heart.NewHeart(ours[2]))
	if err := sandbox.Expendable(cmd.Process.Pid); err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}

// environment has the variables that say where the certificates of authorities are.
func environment() []string {
	env := []string{"GOTRACEBACK=single"} // of a crash, the goroutine alone
	for _, variable := range os.Environ() {
		if strings.HasPrefix(variable, "SSL_CERT_FILE=") || strings.HasPrefix(variable, "SSL_CERT_DIR=") {
			env = append(env, variable)
		}
	}
	return env
}

// watch kills the process when it does not answer beats while a call waits for it, by the evidence about the process alone: a host
// where processes wait for a processor proves nothing. The error of its calls has the cause.
func (p *Process) watch(beats *heart.Heart) {
	busy := func() bool { return p.calls.Waiting() > 0 }
	if why := liveness.Watch(context.Background(), liveness.Process{PID: p.PID(), Ended: p.ended}, beats, busy); why != nil {
		p.calls.Close(errors.Join(ErrLost, why))
		p.Kill()
	}
}

// Kill ends the process without waiting for it.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	p.Conn.Close()
}

// PID returns the id of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended returns a channel that is closed when the process is gone.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Close lets the program close what it has open and end. It returns after 7 seconds at most, even if a disk does
// not answer.
func (p *Process) Close() error {
	p.Conn.Close()
	select {
	case <-p.ended:
	case <-time.After(closeTime):
		p.Kill()
		select {
		case <-p.ended:
		case <-time.After(time.Second):
		}
		return fmt.Errorf("%s does not end: the disk does not answer", p.name)
	}
	if state := p.cmd.ProcessState; !state.Success() {
		return fmt.Errorf("%s: %v", p.name, state)
	}
	return nil
}
