// Package embedded starts a daemon for one command, or for one user, in namespaces of its own.
package embedded

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/internal/thread"
	"github.com/scopefs/scopefs/scope"
)

// Start starts a daemon for this command and one agent. It returns the daemon's directories and
// a function that stops it.
func Start(ctx context.Context, p config.Paths, id scope.ID, told io.Writer) (config.Paths, func(), error) {
	dir, lock, err := newRun(p.Base)
	if err != nil {
		return p, nil, err
	}
	p.Run = dir
	end, err := start(ctx, p, id, lock, told)
	if err != nil {
		RemoveRun(p)
		lock.Close()
		return p, nil, err
	}
	return p, func() {
		end()
		RemoveRun(p)
		lock.Close()
	}, nil
}

// leashFD is the leash's descriptor in an embedded daemon.
const leashFD = 3

// start starts a daemon for one command, in its own mount namespace. For an
// ordinary user it also has its own user namespace, in which mounting needs neither
// root nor a setuid helper. The daemon exits at EOF on the leash, a socket pair:
// also when this process is killed. After it is ready its errors go to stderr.
func start(ctx context.Context, p config.Paths, id scope.ID, lock *os.File, stderr io.Writer) (end func(), err error) {
	ours, theirs, err := newLeash()
	if err != nil {
		return nil, err
	}
	var output daemonOutput
	cmd := namespaced(p, theirs, "--only", string(id))
	cmd.Stderr = &output
	cmd.ExtraFiles = append(cmd.ExtraFiles, lock) // the daemon holds the lock until it exits; see newRun
	thread.Coarsely(func() { err = cmd.Start() })
	theirs.Close() // so that the daemon's exit is an EOF on ours
	if err != nil {
		ours.Close()
		return nil, noNamespaces(err)
	}
	stop := context.AfterFunc(ctx, func() { ours.Close() })
	line, err := bufio.NewReader(ours).ReadString('\n')
	if err != nil || line != "ready\n" {
		ours.Close()
		ended := cmd.Wait()
		stop()
		text := strings.TrimPrefix(strings.TrimSpace(output.held.String()), "scopefs: ")
		if i := strings.LastIndexByte(text, '\n'); i >= 0 {
			text = strings.TrimPrefix(text[i+1:], "scopefs: ")
		}
		err := errors.New(text)
		if status, ok := errors.AsType[*exec.ExitError](ended); ok {
			return nil, exit.With(max(status.ExitCode(), 1), err)
		}
		return nil, err
	}
	output.pass(stderr)
	return func() {
		ours.Close()
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
		stop()
	}, nil
}

// newLeash returns the ends of a leash. A read of ours does not block its thread: the runtime's monitor would look at the
// thread every 20 µs.
func newLeash() (ours, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(pair[0]), "leash"), os.NewFile(uintptr(pair[1]), "leash"), nil
}

// namespaced is a daemon in namespaces of its own, on a leash.
func namespaced(p config.Paths, leash *os.File, flags ...string) *exec.Cmd {
	words := []string{"daemon", "--base", p.Base, "--state", p.State, "--run", p.Run, "--leash", fmt.Sprint(leashFD)}
	cmd := exec.Command("/proc/self/exe", append(words, flags...)...)
	cmd.ExtraFiles, cmd.SysProcAttr = []*os.File{leash}, Namespaces()
	return cmd
}

// Namespaces gives a process a session and a mount namespace of its own and, for an
// ordinary user, a user namespace with the user as 0.
func Namespaces() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Setsid:     true, // only this process gets the terminal's signals
		Cloneflags: unix.CLONE_NEWNS,
	}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	}
	return attr
}

// noNamespaces adds the remedy to an error of creating the namespaces.
func noNamespaces(err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return err
	}
	what := "make a user namespace"
	if os.Geteuid() == 0 {
		what = "make a mount namespace"
	}
	return fmt.Errorf("%s: %w: %s", what, errno, NeedsNamespaces())
}

// NeedsNamespaces is the remedy where no namespaces can be made.
func NeedsNamespaces() string {
	if os.Geteuid() == 0 {
		return mount.NeedsPrivilege
	}
	return "allow them (sysctl user.max_user_namespaces above 0, kernel.apparmor_restrict_unprivileged_userns=0), or run as root"
}

// daemonOutput is the standard error of an embedded daemon. It is held until the
// daemon is ready, for the error of a failed start, and passed on from then on.
type daemonOutput struct {
	mu   sync.Mutex
	held strings.Builder
	to   io.Writer
}

func (o *daemonOutput) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.to != nil {
		return o.to.Write(b)
	}
	return o.held.Write(b)
}

func (o *daemonOutput) pass(to io.Writer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.to = to
}
