package sandbox

import (
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
)

// Spec says what one session is.
type Spec struct {
	Agent    scope.ID          // becomes the host name
	UID, GID uint32            // the agent's user on the host; it gets no other group
	View     *os.File          // root of the mounted view (O_PATH), shown at Workspace; the user must reach its path. nil: none, see Scratch
	ReadOnly bool              // the view cannot be changed
	Network  bool              // the host's network; otherwise none
	Limits   Limits            // zero: unlimited
	Group    *Group            // the agent's, by which Limits.Memory and Limits.CPU hold; nil: a group for the session
	Expose   []string          // host paths shown read-only at the same place
	Env      map[string]string // added to the environment of every command
	Binds    []Bind            // shown beside all that

	// Mounts are the mount points of the host among which the sandbox starts: "/"
	// first, parents before children, what leads to View, Expose and Binds among them.
	// Nil is all. It is worth while where there are hundreds of others; see startAmong.
	Mounts []string

	// OutOfMemory, if any, is called after the kernel killed processes of the session
	// because there was no memory. The session waits for it.
	OutOfMemory func(*Session)
}

// Bind is a file or socket of the host's that a session shows, read-only for what
// is no socket.
type Bind struct {
	File *os.File // O_PATH
	At   string   // below Run
}

// Limits bound a session, or with Spec.Group the agent, Timeout each command. Zero is no limit.
type Limits struct {
	Memory  int64         // bytes, swap included
	PIDs    int           // processes and threads; those of bwrap and init do not count
	CPU     float64       // CPUs: 1.5 is one and a half
	Timeout time.Duration // of one command
}

// Command is a program to run in a session.
type Command struct {
	Argv []string          // Argv[0] is looked up in the PATH of the command; see Self
	Env  map[string]string // over the Spec's
	Dir  string            // relative to Workspace, or absolute in the sandbox
	TTY  *Size             // run on a terminal of this size
	Tag  string            // what it runs for; see Session.TagOf

	Lasting bool // Limits.Timeout is not for it: it serves many calls
}

// Size is that of a terminal, in characters.
type Size struct{ Rows, Cols uint16 }

// Exit is how a command ended.
type Exit struct {
	Code     int         // exit status, -1 when a signal ended it
	Signal   unix.Signal // the signal that ended it, or 0
	TimedOut bool        // Limits.Timeout ended it

	// OutOfMemory: the kernel killed it, or a process of the session about when it ended,
	// because there was no memory left of Limits.Memory.
	OutOfMemory bool
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

// dir is where a session's commands start.
func (s *Spec) dir() string {
	if s.View == nil {
		return Scratch
	}
	return Workspace
}

// innerID is the id that the sandbox shows for a host id: the same, but never
// 0. Programs that believe to be root (tar, npm, apt) do what only root may.
func innerID(id uint32) uint32 {
	if id == 0 {
		return 1000
	}
	return id
}

// DefaultPath is the PATH of a command, where neither Spec nor Command has one.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environ is the whole environment of a command. Nothing of the daemon's is in it.
func environ(spec, command map[string]string) []string {
	env := map[string]string{
		"PATH": DefaultPath,
		"HOME": Home, "USER": User, "LOGNAME": User, "SHELL": "/bin/sh",
		"LANG": "C.UTF-8", "TERM": "dumb", "TMPDIR": "/tmp",
	}
	for _, more := range []map[string]string{spec, command} {
		for k, v := range more {
			env[k] = v
		}
	}
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	return list
}
