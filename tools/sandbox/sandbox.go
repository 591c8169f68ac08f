// Package sandbox starts and supervises bubblewrap sandboxes. It is the daemon's
// side; package pid1 is process 1 inside. One sandbox is one [Session], which runs any
// number of commands.
//
// # Use
//
// [Open] returns a [Host], and [Check] what this host lacks. [Host.Start] starts a session from
// a [Spec]; [Session.Exec] starts a [Command] in it. [Session.Close] kills every
// process of the session and waits for their end. [Host.Close] closes all sessions.
//
// # Contents
//
// A command starts in /workspace, the agent's view. It has a read-only system (/usr,
// its top-level links, and a short list of files of /etc), a private /tmp, a private
// /dev and /proc, and the paths that the operator exposes, read-only and only as far
// as the agent's user may reach them on the host. HOME is out of the view: /home/agent, a
// directory that outlives the session, or /tmp/home. Nothing else of the host is visible: no file, process,
// environment, descriptor or socket. A session with the network has all of the host's
// network, including the host's abstract unix sockets (network_namespaces(7)). A session
// with a proxy has an empty network and one socket that listens in it, which the
// caller of Start serves.
//
// # Confinement
//
// Namespaces of every kind; no capability, even for an agent whose user is root;
// no_new_privs; no nested user namespace; a seccomp filter (seccomp.go); a control
// group when the Spec has limits (cgroup.go). When the host lacks one of these, Open
// or Start returns a [*MissingError] with the remedy, and nothing runs.
//
// # Trust
//
// The daemon starts bwrap as the agent's user. Init makes the descriptors of a command
// inside the sandbox and sends the outer ends; none of the host's descriptors enters.
// Messages of init are checked: one out of turn ends the session. A session ends when
// init dies, and the kernel then kills all processes of the sandbox
// (pid_namespaces(7)). Init dies when the session is closed, when its control socket
// ends, and when bwrap or the daemon dies. Of a session that [Session.Outlive] has
// prepared, init dies when nobody has the control socket any more; [Host.Adopt]
// continues with it.
package sandbox

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/companion"
	"github.com/scopefs/scopefs/internal/pinned"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

const (
	// Workspace is the mount point of the view in the sandbox.
	Workspace = "/workspace"
	// Scratch is the working directory of a session without a view: private, empty at
	// the start, removed at the end.
	Scratch = "/scratch"
	// Run is the directory of a session's Binds.
	Run = "/run/scopefs"
	// Context is the directory of Spec.Context: the context of the call that a process works
	// for.
	Context = "/context"
	// Home is the mount point of Spec.Home, and then the home directory. It is not below
	// /tmp, which agents empty.
	Home = "/home/agent"
	// TempHome is the home directory of a session without Spec.Home: private, removed at
	// the end.
	TempHome = "/tmp/home"
	// User is the name of the agent's user in the sandbox.
	User = "agent"
	// ProxyAddress is where a session with Spec.Proxy reaches its proxy.
	ProxyAddress = pid1.ProxyAddress
	// FileWorker as the first word of a command runs the program of the file tools, which
	// has no path in the sandbox.
	FileWorker = pid1.FileWorker
	// FileTag is the tag of commands that are FileWorker.
	FileTag = "file-worker"
)

var (
	// ErrEnded is the error of an operation on a session that has ended.
	ErrEnded = errors.New("sandbox session has ended")
	// ErrOutOfMemory is in the error of a session or command that the kernel's OOM
	// killer ended.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrTooLarge is the error of a command line and environment over about 140 kB.
	ErrTooLarge = errors.New("command line too long")
	// ErrInvalid is the error of a Spec or Command with invalid fields.
	ErrInvalid = errors.New("invalid sandbox specification")
)

// Config names the programs of a sandbox. Only tests need another than the zero value.
type Config struct {
	Bwrap string // bubblewrap; default: bwrap of PATH
	Init  string // the program of process 1; default: child.Init
	Files string // the program of commands that are FileWorker; default: child.Files

	// Trust returns the Spec.Trust of sessions that start soon, or nil. Open makes their files, which takes two
	// milliseconds.
	Trust func() []byte
}

// program returns the path of a program that was given, else of a role's.
func program(given, role string) (string, error) {
	if given != "" {
		return given, nil
	}
	f, err := child.Program(role)
	if missing, ok := errors.AsType[*companion.MissingError](err); ok {
		err = &MissingError{missing.What(), companion.Remedy}
	}
	if err != nil {
		return "", err
	}
	return procPath(f), nil
}

// Host holds the facilities of this host for sandboxes, checked once. Its methods and
// those of its sessions and processes are safe for concurrent use.
type Host struct {
	program *os.File // that init is executed from
	files   *sealed  // that commands which are FileWorker are executed from
	filter  []byte
	cgroups cgroups
	starter starter

	certificates certificates

	mu       sync.Mutex
	closed   bool // no session starts any more
	stopped  bool
	sessions map[*Session]struct{}
}

// Open prepares starts of sandboxes. The error wraps a *MissingError when a facility is
// missing that Open can see without a try; Check tries all.
func Open(c Config) (*Host, error) {
	bwrap, err := lookBwrap(c.Bwrap)
	if err == nil {
		err = checkSeccomp() // an older kernel would take the filter and kill one thread only
	}
	if err != nil {
		return nil, err
	}
	groups, err := findCgroups()
	if err != nil {
		return nil, err
	}
	first, err := initProgram(c)
	if err != nil {
		return nil, err
	}
	files, err := newSealed(c.Files, child.Files)
	if err != nil {
		first.Close()
		return nil, err
	}
	h := &Host{filter: filter().Bytes(), cgroups: groups, sessions: make(map[*Session]struct{}), program: first, files: files}
	if c.Trust != nil {
		if trust := c.Trust(); trust != nil {
			h.certificates.prepare(trust)
		}
	}
	groups.sweep()
	h.starter.bwrap, h.starter.cgroups, h.starter.thread = bwrap, groups, pinned.Start()
	return h, nil
}

// Close ends every session and waits for their end.
func (h *Host) Close() error {
	h.mu.Lock()
	stopped := h.stopped
	h.stopped = true
	h.mu.Unlock()
	err := h.CloseBut(nil)
	if stopped {
		return err
	}
	h.starter.thread.Stop()
	h.certificates.close()
	return errors.Join(err, h.files.Close(), h.program.Close())
}

// CloseBut ends every other session, and waits for their end. No session starts from then on.
func (h *Host) CloseBut(others []*Session) error {
	h.mu.Lock()
	h.closed = true
	var sessions []*Session
	for s := range h.sessions {
		if !slices.Contains(others, s) {
			sessions = append(sessions, s)
		}
	}
	h.mu.Unlock()
	errs := make([]error, len(sessions))
	var closing sync.WaitGroup
	for i, s := range sessions {
		closing.Go(func() { errs[i] = s.Close() })
	}
	closing.Wait()
	return errors.Join(errs...)
}

// hold registers a session for Close.
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
