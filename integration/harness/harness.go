// Package harness runs the built program for the tests of the folders beside it:
// hosts with agents, clients in other processes, and checks that nothing is left.
//
// A folder has the tests of one subject: attack, view, tools, daemon, cli. Each is a
// package of its own, so go test can run several side by side. To write a test:
//
//   - Put it into the folder of what it tests. Helpers that only this folder needs
//     stay there.
//   - NewHost lays out a base directory with agents and starts a daemon on it. LayOut
//     does so without the daemon, and Embed for commands that start their own.
//   - Host.Must and Host.Try run the command line. Host.Connect is an MCP client,
//     Host.Dial a client that writes raw lines.
//   - Role starts the test binary as another process. The folder adds what that process
//     does to Roles, in an init function.
//   - Wait with Host.Eventually, never with a sleep. Host.Recorded and Host.Events read
//     the audit log.
//   - Temporary directories are Host.Base or t.TempDir. Main reports mounts and
//     processes below them that outlive the tests.
//   - A process that a test searches for in /proc has a command line that no other test
//     uses: see Seconds.
//
// A folder's TestMain calls Main.
package harness

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scopefs/scopefs/internal/companion"
	"github.com/scopefs/scopefs/internal/need"
)

// Program is the path of the scopefs under test: static, as users get it.
var Program string

// TempPrefix begins the names of this run's temporary directories. Packages run side by
// side, and must not report each other's mounts and processes as left behind.
var TempPrefix = fmt.Sprintf("scopefs-%d-", os.Getpid())

// Roles are what the test binary does when a test starts it as another process: see Role.
// A folder adds its own in init functions.
var Roles = map[string]func(args []string) error{"ops": doAll}

// RoleEnv is the environment variable that names the role.
const RoleEnv = "SCOPEFS_TEST_ROLE"

// Main runs a folder's tests with a program that it builds, or the role that this process
// was started for. It exits with a failure if a test leaves a mount or a process.
func Main(m *testing.M) {
	// The race detector has every process wait a second at its end otherwise.
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	if role := os.Getenv(RoleEnv); role != "" {
		if err := Roles[role](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", TempPrefix)
	if err == nil {
		defer os.RemoveAll(dir)    // of a run that has failed
		err = os.Chmod(dir, 0o755) // other users start it, too
	}
	if err == nil {
		os.Setenv("GOTMPDIR", dir) // for t.TempDir: leftovers finds mounts there by TempPrefix
		Program = filepath.Join(dir, "scopefs")
		err = provide(Program)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	flag.Parse()
	code := m.Run()
	if left := leftovers(dir); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "left behind:", strings.Join(left, "\n"))
		return 1
	}
	return code
}

// BuiltEnv is the environment variable with the path of a program that make test built for all folders.
const BuiltEnv = "SCOPEFS_TEST_PROGRAM"

// Daemon returns the path of scopefsd, which Program leaves most of its work to.
func Daemon() string { return Program + "d" }

// provide makes the programs under test: links to the one that BuiltEnv names and to those beside
// it, else new ones. Each run has names of its own, by which leftovers finds its processes.
func provide(program string) error {
	for _, name := range slices.Sorted(maps.Keys(companion.Programs())) {
		if err := provideOne(program, strings.TrimPrefix(name, "scopefs")); err != nil {
			return err
		}
	}
	return provideOne(program, "")
}

func provideOne(program, suffix string) error {
	if built := os.Getenv(BuiltEnv); built != "" {
		if os.Link(built+suffix, program+suffix) == nil {
			return nil
		}
		text, err := os.ReadFile(built + suffix) // on another file system
		if err == nil {
			err = os.WriteFile(program+suffix, text, 0o755)
		}
		return err
	}
	build := exec.Command("go", "build", "-trimpath", "-o", program+suffix, "github.com/scopefs/scopefs/cmd/scopefs"+suffix)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr
	return build.Run()
}

// leftovers returns processes of the tested program, mounts of this run, and what cannot be removed of its
// directory, that are still there after up to 15 seconds.
func leftovers(dir string) (left []string) {
	for end := time.Now().Add(15 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		left = nil
		exes, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, exe := range exes {
			if to, err := os.Readlink(exe); err == nil && strings.HasPrefix(to, dir) {
				left = append(left, exe+" -> "+to)
			}
		}
		mounts, _ := os.ReadFile("/proc/self/mounts")
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, TempPrefix) {
				left = append(left, line)
			}
		}
		if len(left) == 0 {
			err := os.RemoveAll(dir)
			if err == nil {
				return nil
			}
			left = append(left, err.Error()) // a program of a sandbox may still write to it
		}
		if time.Now().After(end) {
			return left
		}
	}
}

// NeedFUSE skips a test where nothing can be mounted. Under REQUIRE_FUSE=1 it fails the
// test instead.
func NeedFUSE(t testing.TB) {
	t.Helper()
	err := os.ErrPermission
	if os.Geteuid() == 0 {
		var f *os.File
		if f, err = os.OpenFile("/dev/fuse", os.O_RDWR, 0); err == nil {
			f.Close()
			return
		}
	}
	need.Skip(t, "needs root and /dev/fuse: ", err)
}
