package sandbox

import (
	"fmt"
	"maps"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

// Spec describes one session.
type Spec struct {
	Agent    scope.ID          // the host name
	UID, GID uint32            // the agent's user on the host; no supplementary groups
	View     *os.File          // root of the mounted view (O_PATH), mounted at Workspace; the user must reach its path. nil: none, see Scratch
	At       string            // the path on the host of the directory that View is of; a link there leads to Workspace, if nothing else is there. "": none
	ReadOnly bool              // the view is read-only, and so are Roots
	Network  bool              // the host's network; otherwise an empty one
	Proxy    bool              // in the empty network, a socket that listens at ProxyAddress; see Session.Listener
	Trust    []byte            // PEM certificates that programs trust beside those of the host's CAs; nil: none
	Limits   Limits            // zero: unlimited
	Group    *Group            // the agent's group, which enforces Limits.Memory and Limits.CPU; nil: a group for the session
	Expose   []string          // host paths shown read-only at the same place; see Sockets
	Sockets  []string          // those of Expose whose sockets and FIFOs are the host's; others are reached by nobody
	Env      map[string]string // added to the environment of every command
	Binds    []Bind            // mounted below Run
	Context  *os.File          // a mount that is attached nowhere (fsmount(2)), mounted read-only at Context; nil: none
	Home     *os.File          // a directory of the host (O_PATH), mounted at Home without set-id bits; nil: none. The user need not reach its path
	Git      GitUser           // the user of commits whom neither a repository nor HOME names
	SSH      *SSH              `json:",omitempty"` // what ssh(1) has to reach hosts; nil: nothing
	Devices  []string          `json:",omitempty"` // of the host, at their paths: DeviceNames, or paths below /dev; see Session.Lacks

	// Roots are further views. With some, the view is mounted at At as well, if nothing else is there, and commands start there.
	Roots []Root `json:",omitempty"`

	// Mounts are the mount points of the host that bwrap may see: "/" first, parents before
	// children, including the mounts of View, Expose and Binds. bwrap sees those of them that
	// the sandbox shows something of; see starter.among. Nil is all mounts.
	Mounts []string

	// OutOfMemory, if not nil, is called after the OOM killer has killed processes of the
	// session. It must return soon: the session's messages wait for it.
	OutOfMemory func(*Session)
}

// SSH is the configuration of ssh(1) in a session. Where Spec.Proxy is set, it connects by the program of package message, which Spec.Binds has.
type SSH struct {
	Known string // /etc/ssh/ssh_known_hosts
}

// GitUser is a name and an address for git-commit(1). Empty ones are not set.
type GitUser struct {
	Name, Email string
	Linked      bool // the directory is a linked worktree: git-gc(1) leaves the reflogs and the directories of other worktrees alone
}

// Root is a view that a session has at the path of its directory on the host.
type Root struct {
	View *os.File // root of the mounted view (O_PATH); the user must reach its path
	At   string
}

// Bind is a file or socket of the host that a session sees, read-only.
type Bind struct {
	File *os.File // O_PATH; the user must reach its path
	At   string   // below Run

	// Copy makes the session see an executable copy of what File has from its offset on,
	// which Start reads: File is open for reading, and the user need not reach its path.
	// The copy counts as the session's memory.
	Copy bool
}

// Limits bound a session, or with Spec.Group the agent. Zero is no limit.
type Limits struct {
	Memory  int64         // bytes, swap included
	PIDs    int           // processes and threads, without those of bwrap and init
	CPU     float64       // CPUs: 1.5 is one and a half
	Timeout time.Duration // of one command
}

// Command is a program for a session.
type Command struct {
	Argv []string          // Argv[0] is looked up in the PATH of the command; see FileWorker
	Env  map[string]string // over the Spec's
	Dir  string            // relative to Workspace, or absolute in the sandbox
	TTY  *Size             // run on a terminal of this size
	Tag  string            // the caller's name for it; see Session.TagOf

	Lasting bool // without Limits.Timeout: it serves many calls

	socket bool // standard input is a socket of packets: see Ports
}

// Size is the size of a terminal in characters.
type Size = pid1.Size

// Exit is the result of a command.
type Exit struct {
	Code     int         // exit status, -1 when a signal ended it
	Signal   unix.Signal // the signal that ended it, or 0
	TimedOut bool        // Limits.Timeout ended it

	// OutOfMemory reports that the command failed and the OOM killer killed it, or another
	// process of the session at about the same time.
	OutOfMemory bool
}

// OutcomeMemory is the outcome of events of what the kernel killed for lack of memory.
const OutcomeMemory = "out of memory"

// Outcome returns how the command ended, for the log.
func (e Exit) Outcome() string {
	switch {
	case e.TimedOut:
		return "timed out"
	case e.OutOfMemory:
		return OutcomeMemory
	case e.Signal != 0:
		return fmt.Sprintf("signal %d", e.Signal)
	}
	return fmt.Sprintf("exit %d", e.Code)
}

// String returns how the command ended, as "with status 1" or "at its timeout".
func (e Exit) String() string {
	switch {
	case e.TimedOut:
		return "at its timeout"
	case e.OutOfMemory:
		return "at its memory limit"
	case e.Signal != 0:
		return "by " + unix.SignalName(e.Signal)
	}
	return fmt.Sprintf("with status %d", e.Code)
}

func (s *Spec) validate() error {
	if _, err := scope.ParseID(string(s.Agent)); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	for _, b := range s.Binds {
		if b.File == nil || !strings.HasPrefix(b.At, Run+"/") || path.Clean(b.At) != b.At {
			return fmt.Errorf("%w: bind at %q", ErrInvalid, b.At)
		}
	}
	for i, r := range s.Roots {
		if r.View == nil || s.View == nil || !s.free(r.At) {
			return fmt.Errorf("%w: a sandbox has its own files at %q, or what expose shows: no root can be there", ErrInvalid, r.At)
		}
		for _, o := range append([]Root{{At: s.At}}, s.Roots[:i]...) {
			if o.At != "" && (below(o.At, r.At) || below(r.At, o.At)) {
				return fmt.Errorf("%w: %q and %q hold one another", ErrInvalid, o.At, r.At)
			}
		}
	}
	if s.Network && s.Proxy {
		return fmt.Errorf("%w: a proxy beside the host's network", ErrInvalid)
	}
	if l := s.Limits; l.Memory < 0 || l.PIDs < 0 || l.CPU < 0 || l.Timeout < 0 {
		return fmt.Errorf("%w: negative limit", ErrInvalid)
	}
	return validEnv(s.Env)
}

func (c *Command) validate() error {
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return fmt.Errorf("%w: empty command", ErrInvalid)
	}
	for _, word := range append(c.Argv, c.Dir) {
		if strings.ContainsRune(word, 0) {
			return fmt.Errorf("%w: NUL in %q", ErrInvalid, word)
		}
	}
	return validEnv(c.Env)
}

func validEnv(env map[string]string) error {
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return fmt.Errorf("%w: environment variable %q", ErrInvalid, k)
		}
	}
	return nil
}

// dir returns the working directory of a session's commands.
func (s *Spec) dir() string {
	switch {
	case s.View == nil:
		return Scratch
	case len(s.Roots) > 0 && s.free(s.At):
		return s.At
	}
	return Workspace
}

// home returns the home directory of a session's user.
func (s *Spec) home() string {
	if s.Home == nil {
		return TempHome
	}
	return Home
}

// innerID maps an id to that in the sandbox: the user's on the host, for git compares the owners of files with those in its
// index, but never 0. Programs that run as uid 0 (tar, npm, apt) try operations that only root may do. idMap is uid_map or
// gid_map: an ordinary user is 0 in a user namespace that has this id alone.
func innerID(id uint32, idMap string) uint32 {
	if id != 0 {
		return id
	}
	var inside, outside, size uint32
	text, err := os.ReadFile("/proc/self/" + idMap)
	if err == nil {
		_, err = fmt.Sscan(string(text), &inside, &outside, &size)
	}
	if err == nil && inside == 0 && size == 1 && outside != 0 {
		return outside
	}
	return 1000
}

// DefaultPath is the PATH of a command when neither Spec nor Command has one. Its end is where go.dev has Go installed.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin"

// noDocker is where docker looks for its socket: its message has the reason why there is none.
const noDocker = "unix://" + Run + "/no-docker--its-socket-is-root-of-the-host"

// proxyEnv returns the variables that programs read a proxy from. ALL_PROXY is not
// socks5h: some libraries fail at that scheme without an additional module. Node.js needs
// NODE_USE_ENV_PROXY.
func proxyEnv() map[string]string {
	const at, local = "http://" + ProxyAddress, "localhost,127.0.0.1,::1"
	return map[string]string{
		"HTTP_PROXY": at, "HTTPS_PROXY": at, "ALL_PROXY": at, "NO_PROXY": local,
		"http_proxy": at, "https_proxy": at, "all_proxy": at, "no_proxy": local,
		"grpc_proxy":         at, // gRPC's C core (Python, Ruby, PHP, C++) looks at it first
		"NODE_USE_ENV_PROXY": "1",
	}
}

// environ returns the environment of a command. It holds nothing of the daemon's.
func (s *Spec) environ(command map[string]string) []string {
	env := map[string]string{
		"PATH": DefaultPath,
		"HOME": s.home(), "USER": User, "LOGNAME": User, "SHELL": "/bin/sh",
		"LANG": "C.UTF-8", "TERM": "dumb", "TMPDIR": "/tmp",
	}
	if len(s.Sockets) == 0 {
		env["DOCKER_HOST"] = noDocker
	}
	maps.Copy(env, s.Env)
	if s.Proxy {
		maps.Copy(env, proxyEnv())
	}
	if s.Trust != nil {
		maps.Copy(env, trustEnv())
	}
	maps.Copy(env, command)
	for name, options := range map[string]string{javaOptions: s.javaEnv(env[javaOptions]), nodeOptions: s.nodeEnv(env[nodeOptions])} {
		if options != "" {
			env[name] = options
		}
	}
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	return list
}
