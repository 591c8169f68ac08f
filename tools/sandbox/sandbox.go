// Package sandbox is the place where tools run: one bubblewrap sandbox a
// session, with our own init as its process 1, which runs any number of
// commands.
//
// # What a command sees
//
// The agent's view at /workspace (where it starts), a read-only system (/usr
// and what belongs to it, a short list of files of /etc), a private /tmp (with
// HOME=/tmp/home, so that the caches of tools do not litter the view), /dev and
// /proc of its own, and whatever the operator exposes, read-only and only as
// far as the agent's user may reach it on the host. Nothing else of the host:
// no file, no process, no environment, no descriptor and, unless the network is
// granted, no socket. With the network comes all of it, the abstract unix
// sockets of the host included (network_namespaces(7)).
//
// # What holds it
//
// Namespaces of every kind; no capability in any set, also for an agent whose
// user is root; no new privileges; no further user namespace; two seccomp
// filters (seccomp.go); a control group when limits are asked (cgroup.go). If
// one of these cannot be had, nothing runs: Open and Start return a
// *MissingError that says how to get it.
//
// # Who holds what
//
// The daemon starts bwrap as the agent's user. Init makes every descriptor that
// a command gets inside the sandbox and passes the outer ends to the daemon
// (unix(7), SCM_RIGHTS): none of the host's ever enters. What init says is not
// trusted; a message that it should not send ends the session. A session ends
// by the death of init, and the kernel then kills whatever it had started
// (pid_namespaces(7)). Init dies when the session is closed, when its control
// socket ends, and when bwrap or the daemon dies.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/scopefs/scopefs/internal/thread"
)

const (
	// Workspace is where the view is in the sandbox.
	Workspace = "/workspace"
	// Scratch is where commands start in a session without a view: empty, private,
	// gone with it.
	Scratch = "/scratch"
	// Run is where a session's Binds are.
	Run = "/run/scopefs"
	// Home is the home directory in the sandbox: private, gone with it.
	Home = "/tmp/home"
	// User is the name of the agent's user in the sandbox.
	User = "agent"
	// Self as the first word of a command runs the daemon's own program, which
	// has no path in the sandbox.
	Self = "scopefs:self"
	// InitArg is the first argument of the program when it is to call Init.
	InitArg = "sandbox-init"
)

var (
	// ErrEnded is the error of whatever is asked of a session that has ended.
	ErrEnded = errors.New("sandbox session has ended")
	// ErrOutOfMemory is in the error of a session, or of a command of it, that the kernel
	// ended because there was no memory left.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrTooLarge is the error of a command line and environment over about 140 kB.
	ErrTooLarge = errors.New("command line too long")
	// ErrInvalid is the error of a Spec or Command that makes no sense.
	ErrInvalid = errors.New("invalid sandbox specification")
)

// Config says which programs make a sandbox. The zero value is right but in tests.
type Config struct {
	Bwrap   string // bubblewrap; default: bwrap of PATH
	Program string // the program whose main calls Init; default: this one
}

// Host is what this host gives to sandboxes, looked up and checked once. Its
// methods may be called from any goroutine, as those of what it returns.
type Host struct {
	bwrap   string
	program *os.File // a sealed copy of Config.Program
	filters [][]byte
	cgroups cgroups
	// thread forks every bwrap. PR_SET_PDEATHSIG is sent when the thread that forked
	// ends, not the process (prctl(2)), and Go ends threads as it likes: a bwrap forked
	// from any of them could be killed in the middle of a session.
	thread thread.Thread

	mu       sync.Mutex
	closed   bool
	sessions map[*Session]struct{}
}

// Open checks that this host can confine. The error wraps a *MissingError for
// each thing that is missing.
func Open(ctx context.Context, c Config) (*Host, error) {
	bwrap, err := check(ctx, c.Bwrap)
	if err != nil {
		return nil, err
	}
	filters, err := filters()
	if err != nil {
		return nil, err
	}
	groups, err := findCgroups()
	if err != nil {
		return nil, err
	}
	if c.Program == "" {
		c.Program = "/proc/self/exe"
	}
	program, err := sealed(c.Program)
	if err != nil {
		return nil, err
	}
	groups.sweep()
	return &Host{
		bwrap: bwrap, program: program, filters: filters, cgroups: groups,
		thread:   thread.Start(),
		sessions: make(map[*Session]struct{}),
	}, nil
}

// Close ends every session and waits until they are gone.
func (h *Host) Close() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	sessions := make([]*Session, 0, len(h.sessions))
	for s := range h.sessions {
		sessions = append(sessions, s)
	}
	h.mu.Unlock()
	var errs []error
	for _, s := range sessions {
		errs = append(errs, s.Close())
	}
	h.thread.Stop()
	return errors.Join(append(errs, h.program.Close())...)
}

// hold counts a session in, so that Close finds it.
func (h *Host) hold(s *Session) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return fmt.Errorf("start sandbox: %w", os.ErrClosed)
	}
	h.sessions[s] = struct{}{}
	return nil
}

func (h *Host) release(s *Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.sessions, s)
}
