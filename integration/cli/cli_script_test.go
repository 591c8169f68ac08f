package cli

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestScript runs the conversations of testdata/script: what is typed, what
// comes of it. After each nothing may be left.
func TestScript(t *testing.T) {
	harness.NeedFUSE(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", filepath.Dir(harness.Program)+":"+e.Getenv("PATH"))
			e.Defer(func() {
				if left := harness.ProcessesOf(e.WorkDir); len(left) > 0 {
					e.T().Log("left running:", left)
					e.T().FailNow()
				}
			})
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exitsWith,
			"ready": daemonReady,
			"left":  somethingLeft,
		},
	})
}

// exitsWith: exits STATUS COMMAND... runs a command. One that fails says why on one line,
// and nothing else.
func exitsWith(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	stdout, stderr := ts.ReadFile("stdout"), ts.ReadFile("stderr")
	if code != want {
		ts.Fatalf("%v exits with %d, want %d\n%s%s", args[1:], code, want, stdout, stderr)
	}
	if text, ok := strings.CutPrefix(stderr, "scopefs: "); code != 0 && args[1] == "scopefs" && stdout == "" &&
		(!ok || strings.Count(text, "\n") != 1 || strings.HasSuffix(text, ".\n")) {
		ts.Fatalf("not one line in our form: %q", stderr)
	}
}

// daemonReady waits for the daemon of $SCOPEFS_BASE.
func daemonReady(ts *testscript.TestScript, _ bool, _ []string) {
	for range 500 {
		if ts.Exec("scopefs", "ps") == nil && !strings.Contains(ts.ReadFile("stdout"), "starting") && !strings.HasPrefix(ts.ReadFile("stdout"), "nothing runs") {
			return
		}
		ts.Check(ts.Exec("sleep", "0.02"))
	}
	ts.Fatalf("no daemon: %s", ts.ReadFile("stderr"))
}

// somethingLeft, in the negative, fails when there is a mount or a temporary directory.
func somethingLeft(ts *testscript.TestScript, neg bool, _ []string) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	ts.Check(err)
	tmp, _ := filepath.Glob(ts.Getenv("TMPDIR") + "/*")
	some := strings.Contains(string(mounts), ts.Getenv("WORK")) || len(tmp) > 0
	if some == neg {
		ts.Fatalf("left: %v, %v", some, tmp)
	}
}
