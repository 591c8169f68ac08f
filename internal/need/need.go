// Package need is for tests that depend on something a machine may lack: root, a
// program, a device. Such a test skips there. Under REQUIRE_FUSE=1, which make test
// and CI set, it fails instead, so that no promise goes untested unnoticed.
package need

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// Required reports whether a missing dependency is a failure.
func Required() bool { return os.Getenv("REQUIRE_FUSE") == "1" }

// Skip ends a test for want of something. It fails the test if that is Required.
func Skip(t testing.TB, why ...any) {
	t.Helper()
	if Required() {
		t.Fatal(why...)
	}
	t.Skip(why...)
}

// Root ends a test that runs as an ordinary user.
func Root(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skip(t, "needs root: ", why)
	}
}

// Program ends a test on a machine without a program, and returns its path.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Skip(t, err)
	}
	return path
}

// Long skips a test that takes long, under go test -short. A Required test runs.
func Long(t testing.TB, why string) {
	t.Helper()
	if testing.Short() && !Required() {
		t.Skip(why)
	}
}

// Once skips a test where the tests run again with one processor (SCOPEFS_TEST_AGAIN=1, which make test-serial sets). It is
// for tests that mostly wait, for disks, timeouts and dead processes, and for programs of others: the scheduler changes
// nothing in them.
func Once(t testing.TB) {
	t.Helper()
	if Again() {
		t.Skip("runs once")
	}
}

// Again reports whether the tests run again with one processor, and without the race detector.
func Again() bool { return os.Getenv("SCOPEFS_TEST_AGAIN") == "1" }

// All skips a test that make test leaves to make test-all (SCOPEFS_TEST_ALL=1): it needs much that is installed for it alone, repeats a
// promise in other modes, or takes minutes.
func All(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("SCOPEFS_TEST_ALL") != "1" {
		t.Skip("make test-all runs it: " + why)
	}
}

// Rounds returns how often a test repeats what it does at a random time: few, in make test-all all, or the number of an environment
// variable.
func Rounds(variable string, few, all int) int {
	if n, err := strconv.Atoi(os.Getenv(variable)); err == nil {
		return n
	}
	if os.Getenv("SCOPEFS_TEST_ALL") == "1" {
		return all
	}
	return few
}

// Target skips a test that only a target of the Makefile runs, which gives an environment variable the value.
func Target(t testing.TB, target, variable, value string) {
	t.Helper()
	if os.Getenv(variable) != value {
		t.Skipf("make %s runs it", target)
	}
}
