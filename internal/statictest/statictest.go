// Package statictest runs tests that start their own program in a role which confines itself.
package statictest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/child"
)

// Main plays the roles of a test program, runs its tests and exits. A role may need a static program: with C libraries, as the race
// detector needs them, Go cannot change the credentials of every thread. Then Main builds the tests of its package once more, without C,
// beside this program, where [child.Program] finds them under the role's name. Run it from the directory of the package, as go test does.
func Main(m *testing.M, roles map[string]func() int) {
	if static() {
		child.Play(roles)
		os.Exit(m.Run())
	}
	code, err := beside(m, roles)
	if err != nil {
		fmt.Fprintln(os.Stderr, "statictest:", err)
		code = 1
	}
	os.Exit(code)
}

// static reports whether Go can make a system call on every thread of this program.
func static() bool {
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_GETPID, 0, 0, 0)
	return errno != unix.ENOTSUP
}

// beside runs the tests while static programs of the roles are beside this one. It returns the tests' status.
func beside(m *testing.M, roles map[string]func() int) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	for name := range roles {
		at := filepath.Join(filepath.Dir(self), name)
		build := exec.Command("go", "test", "-c", "-vet=off", "-o", at, ".")
		build.Env, build.Stderr = append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
		defer os.Remove(at)
		if err := build.Run(); err != nil {
			return 0, fmt.Errorf("build %s without C: %w", name, err)
		}
	}
	return m.Run(), nil
}
