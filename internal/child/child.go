// Package child starts the processes of scopefs: each from the program of its role, by a descriptor of the installed file that was opened
// once. What replaces the file on disk changes nothing for a process that runs.
package child

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/companion"
)

// The programs of roles, in directories of cmd.
const (
	View    = "scopefs-view"    // serves the mount of an agent
	Context = "scopefs-context" // serves /context of a sandbox
	Holder  = "scopefs-holder"  // keeps views and sandboxes for the next daemon
	Agent   = "scopefs-agent"   // an agent's process: the network of its sandboxes
	Log     = "scopefs-log"     // writes the log
	Init    = "scopefs-init"    // process 1 of a sandbox
	Files   = "scopefs-files"   // the file worker in a sandbox
	Stores  = "scopefs-stores"  // the drivers of stores
	Export  = "scopefs-export"  // streams of the log, and servers of fleets
	YAML    = "scopefs-yaml"    // parses the YAML of a repository
	Console = "scopefs-console" // the web page
)

// Open opens the programs of all roles, so that what replaces a file later changes nothing. One that is not installed is an error when it
// is needed.
func Open() {
	for _, name := range []string{View, Context, Holder, Agent, Log, Init, Files, Stores, Export, Console, YAML} {
		_, _ = Program(name)
	}
}

// least is above the descriptors that a process gets: package os/exec moves none of them there.
const least = 256

var programs struct {
	sync.Mutex
	own  map[string]struct{}
	open map[string]*os.File
}

// Play has this program play roles: it runs the one that its argv[0] names and exits, and Program returns this program for each. A
// role may be nil. Bubblewrap sets argv[0] of process 1: then argv[1] has the name. Main functions, also of tests, call Play first.
func Play(roles map[string]func() int) {
	name := os.Args[0]
	if strings.HasPrefix(name, "/proc/self/fd/") && len(os.Args) > 1 {
		name = os.Args[1]
	}
	if main := roles[name]; main != nil {
		os.Exit(main())
	}
	programs.Lock()
	defer programs.Unlock()
	programs.own = map[string]struct{}{}
	for name := range roles {
		programs.own[name] = struct{}{}
	}
}

// Program returns the program of a role, opened with O_PATH: see [companion.Open]. It stays open.
func Program(name string) (*os.File, error) {
	programs.Lock()
	defer programs.Unlock()
	if f := programs.open[name]; f != nil {
		return f, nil
	}
	var f *os.File
	var err error
	if _, own := programs.own[name]; own {
		f, err = os.OpenFile("/proc/self/exe", unix.O_PATH, 0)
	} else {
		f, err = companion.Open(name)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	high, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, least)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if programs.open == nil {
		programs.open = map[string]*os.File{}
	}
	programs.open[name] = os.NewFile(uintptr(high), f.Name())
	return programs.open[name], nil
}

// Command returns a command that runs the program of a role, in / and with no environment.
func Command(name string, args ...string) (*exec.Cmd, error) {
	f, err := Program(name)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(Path(f))
	cmd.Args, cmd.Dir, cmd.Env = append([]string{name}, args...), "/", []string{}
	return cmd, nil
}

// Path returns a path by which this process, and its children of other users, execute an open program.
func Path(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }
