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
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/companion"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/slack"
	"github.com/scopefs/scopefs/scope"
)

// Unmounted is a flag of the daemon that Start starts: the agent has no view until a request needs it.
const Unmounted = "unmounted"

// Start starts a daemon for this command and one agent, with flags. Without flags it is that of another command, if one runs for the
// agent. Start returns the daemon's directories and a function that stops it, once no command uses it any more.
func Start(ctx context.Context, p paths.Paths, id scope.ID, told io.Writer, flags ...string) (paths.Paths, func(), error) {
	shared := ""
	if len(flags) == 0 {
		if at, leave, err := join(ctx, p, id); leave != nil || err != nil {
			return at, leave, err
		}
		shared = sharedBy(p, id)
	}
	dir, lock, err := newRun(p.Base, shared)
	if err != nil {
		return p, nil, err
	}
	p.Run = dir
	end, err := start(ctx, p, id, lock, told, flags)
	if err != nil {
		RemoveRun(p)
		lock.Close()
		return p, nil, err
	}
	return p, func() {
		end()
		lock.Close()
		removeEnded(p)
	}, nil
}

// sharedBy returns the text of agentLink: commands with another log do not share the daemon.
func sharedBy(p paths.Paths, id scope.ID) string { return filepath.Join(p.State, string(id)) }

// join has the daemon that another command has started for an agent go on until leave is called; nil: there is none. It waits for one
// that starts or ends. The error is that of sameEnviron.
func join(ctx context.Context, p paths.Paths, id scope.ID) (at paths.Paths, leave func(), err error) {
	for _, at := range Running(p) {
		if of, err := os.Readlink(filepath.Join(at.Run, agentLink)); err != nil || of != sharedBy(p, id) {
			continue
		}
		for end := time.Now().Add(startTime); runs(at) && time.Now().Before(end) && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
			conn, _, err := client.New(at).Request(ctx, "POST", "/v1/agents/"+string(id)+"/flags", struct{}{})
			if err == nil {
				if err := sameEnviron(p, at, id); err != nil {
					conn.Close()
					return p, nil, err
				}
				return at, func() { conn.Close() }, nil
			}
			refused, _ := errors.AsType[*client.Error](err)
			if !errors.Is(err, client.ErrNoDaemon) && (refused == nil || refused.Kind != client.Closing) {
				break
			}
		}
	}
	return p, nil, nil
}

// leashFD is the leash's descriptor in an embedded daemon.
const leashFD = 3

// start starts a daemon for one command. After it is ready its errors go to stderr.
func start(ctx context.Context, p paths.Paths, id scope.ID, lock *os.File, stderr io.Writer, flags []string) (end func(), err error) {
	program, err := companion.Open("scopefsd") // this program may be the small one
	if err != nil {
		return nil, err
	}
	defer program.Close()
	cmd, ours, err := namespaced(program.Name(), p, append(flags, "--only", string(id))...)
	if err != nil {
		return nil, err
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, lock) // the daemon holds the lock until it exits; see newRun
	d, err := ready(ctx, cmd, ours, 0, stderr)
	if err != nil {
		return nil, err
	}
	return func() { d.End(10 * time.Second) }, nil
}

// Daemon is a daemon on a leash.
type Daemon struct {
	Ended <-chan struct{} // closed when the process has ended

	cmd   *exec.Cmd
	leash *os.File
	stop  func() bool
	said  string // on standard error, before it was ready
}

// startTime bounds the start of a base's daemon. Its disk may hang.
const startTime = time.Minute

// StartBase starts the daemon of a base, with an environment and flags, and returns when it is ready. Its standard error is
// passed to stderr from then on.
func StartBase(ctx context.Context, p paths.Paths, env []string, stderr io.Writer, flags ...string) (*Daemon, error) {
	cmd, ours, err := namespaced(self, p, append(flags, "--user")...)
	if err != nil {
		return nil, err
	}
	cmd.Env, cmd.Dir = env, "/"
	d, err := ready(ctx, cmd, ours, startTime, stderr)
	if err == nil {
		fmt.Fprint(stderr, d.said)
	}
	return d, err
}

// Used is what a daemon writes to the leash after the command that has started it, if others use it.
const Used = "used"

// End ends the daemon and returns after its end, or when it says that it is used. One that has not ended in time is killed.
func (d *Daemon) End(within time.Duration) {
	used := make(chan struct{})
	if conn, err := d.leash.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
	go func() {
		if line, _ := bufio.NewReader(d.leash).ReadString('\n'); line == Used+"\n" {
			close(used)
		}
	}()
	kill := time.AfterFunc(within, func() { _ = d.cmd.Process.Kill() })
	select {
	case <-d.Ended:
	case <-used:
	}
	kill.Stop()
	d.stop()
	d.leash.Close()
}

// ready starts a daemon and returns when it is ready. One that is not ready within a time is killed; 0: it may take any. The
// end of ctx ends the daemon.
func ready(ctx context.Context, cmd *exec.Cmd, ours *os.File, within time.Duration, stderr io.Writer) (*Daemon, error) {
	var output daemonOutput
	cmd.Stderr = &output
	var err error
	slack.Coarsely(func() { err = cmd.Start() })
	cmd.ExtraFiles[0].Close() // so that the daemon's exit is an EOF on ours
	if err != nil {
		ours.Close()
		return nil, noNamespaces(err)
	}
	if within > 0 {
		defer time.AfterFunc(within, func() { _ = cmd.Process.Kill() }).Stop()
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
	said := output.pass(stderr)
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		ours.Close()
		close(ended)
	}()
	return &Daemon{ended, cmd, ours, stop, said}, nil
}

// self is this program, whatever replaces its file.
const self = "/proc/self/exe"

// namespaced is a daemon in namespaces of its own, and its leash. For an ordinary user it also has its own user namespace, in
// which mounting needs neither root nor a setuid helper. The daemon exits at EOF on the leash, a socket pair: also when this
// process is killed.
func namespaced(program string, p paths.Paths, flags ...string) (*exec.Cmd, *os.File, error) {
	ours, theirs, err := descriptors.Pair(unix.SOCK_STREAM) // the runtime's monitor would look at a thread that blocks in a read every 20 µs
	if err != nil {
		return nil, nil, err
	}
	words := []string{"daemon", "--base", p.Base, "--state", p.State, "--run", p.Run, "--leash", fmt.Sprint(leashFD)}
	cmd := exec.Command(program, append(words, flags...)...)
	cmd.ExtraFiles, cmd.SysProcAttr = []*os.File{theirs}, Namespaces()
	return cmd, ours, nil
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
	return &mount.HostError{What: fmt.Sprintf("%s: %v", what, errno), Remedy: mount.NeedsNamespaces()}
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

// pass passes on what the daemon writes from now on, and returns what it wrote before.
func (o *daemonOutput) pass(to io.Writer) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.to = to
	return o.held.String()
}
