package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/proc"
)

// TestReplacedPrograms: a daemon starts each process from the program that was installed when the daemon started, and the process has the
// name of its program.
func TestReplacedPrograms(t *testing.T) {
	need.Program(t, "bash")
	s := newHostOf(t)
	h := harness.LayOut(t, map[string]string{"a": s.reaches(""), "late": ""})
	installed := filepath.Join(h.Base, "bin")
	require.NoError(t, os.Mkdir(installed, 0o755))
	programs, err := filepath.Glob(harness.Program + "*")
	require.NoError(t, err)
	require.NoError(t, exec.Command("cp", append(programs, installed)...).Run())
	func() {
		defer func(program string) { harness.Program = program }(harness.Program)
		harness.Program = filepath.Join(installed, filepath.Base(harness.Program))
		h.Start()
	}()
	daemon := h.Cmd.Process.Pid
	child := func(name string) int {
		var pids []int
		h.Eventually(name+" runs", func() bool { pids = harness.ChildrenOf(daemon, name); return len(pids) > 0 })
		return pids[0]
	}
	for _, program := range programs {
		file := filepath.Join(installed, filepath.Base(program))
		harness.Executable(t, file+".new", []byte("#!/bin/sh\necho replaced >&2\nexit 1\n"))
		require.NoError(t, os.Rename(file+".new", file))
	}
	for _, name := range []string{"scopefs-log", "scopefs-holder", "scopefs-view"} {
		was := child(name)
		require.NoError(t, syscall.Kill(was, syscall.SIGKILL))
		h.Eventually(name+" is gone", func() bool { return harness.StateOf(was) == 0 })
		if name == "scopefs-log" {
			late := h.Connect("late")
			h.Eventually("the log is written again", func() bool { return <-late.Begin(h.Soon(), "bash", args{"command": "true"}) == nil })
		}
	}
	h.Eventually("the view is mounted again", func() bool { return h.Agent("a").State == "mounted" })
	run := beginThin(h, "run", "a", "--", "bash", "-c", byConnect+echo)
	far := s.next()
	far.echoes(t, "by the tunnel")
	for _, name := range []string{"scopefs-log", "scopefs-holder", "scopefs-view", "scopefs-agent"} {
		assert.Equal(t, name, proc.Name(child(name)))
	}
	u := h.Connect("a")
	u.Call("write_file", args{"path": "f", "content": "text"})
	inside := u.Bash("ps -e -o comm")
	assert.Contains(t, inside, "scopefs-init\n")
	assert.Contains(t, inside, "scopefs-files\n")
	far.Close()
	code, errs := endThin(h, run)
	assert.Equal(t, 7, code, errs)
	h.Eventually("its end is recorded", func() bool { return len(connections(h, "a")) > 0 })
	assert.NotEmpty(t, h.Calls("a", "write_file"))
}
