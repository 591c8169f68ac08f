package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// untouched runs f and sees that it left no mount, no process and nothing in the
// view.
func (m *way) untouched(f func()) {
	m.t.Helper()
	f()
	assert.NoFileExists(m.t, m.scope("a", "ran"), "the command ran")
	m.clean()
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(m.t, err)
	assert.NotContains(m.t, string(mounts), m.tmp)
	assert.Empty(m.t, processesOf(m.base))
}

// processesOf are those of a host, by their command line.
func processesOf(base string) (found []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		if text, _ := os.ReadFile(name); strings.Contains(string(text), base) {
			found = append(found, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return found
}

// When a piece of the confinement is missing, run says which, and how to get it,
// on one line, and runs nothing.
func TestRunFailsClosed(t *testing.T) {
	touch := []string{"run", "a", "--", "touch", "/workspace/ran"}
	for name, c := range map[string]struct {
		front string
		uid   int
		cmd   func(m *way) *exec.Cmd // nil: as it is
		want  string
	}{
		"no bubblewrap": {"", 0, func(m *way) *exec.Cmd {
			cmd := m.scopefs(touch...)
			cmd.Env = append(cmd.Env, "PATH=/nowhere")
			return cmd
		}, "scopefs: bubblewrap is not installed: apt-get install bubblewrap\n"},
		"no /dev/fuse": {"", 0, func(m *way) *exec.Cmd {
			cmd := privately(m.t, noFUSE, append([]string{program, "--base", m.base}, touch...)...)
			cmd.Env = append(cmd.Env, "TMPDIR="+m.tmp)
			return cmd
		}, "scopefs: mount \"a\": open /dev/fuse: no such file or directory: load the module (modprobe fuse) or ask for access to the device\n"},
		"closed /dev/fuse": {"", 1234, func(m *way) *exec.Cmd {
			cmd := exec.Command("setpriv", append([]string{"--reuid", "1234", "--regid", "1234", "--clear-groups", "--", program, "--base", m.base}, touch...)...)
			cmd.Env = append(os.Environ(), "TMPDIR="+m.tmp)
			return cmd
		}, "scopefs: mount \"a\": open /dev/fuse: permission denied: load the module (modprobe fuse) or ask for access to the device\n"},
		"limits without groups": {"limits: {pids: 50}", 1234, nil,
			"scopefs: start sandbox of \"a\": limits: no control group for pids"},
		"scope of another": {"", 1234, func(m *way) *exec.Cmd {
			require.NoError(m.t, os.Chown(m.scope("a"), 65534, 65534))
			require.NoError(m.t, os.Chmod(m.scope("a"), 0o777))
			return m.scopefs(touch...)
		}, "scopefs: mount \"a\": the scope of \"a\" belongs to another user: run as that user, or as root\n"},
		"another's identity": {"identity: caller", 1234, nil, "scopefs: mount \"a\": identity: caller needs a daemon that runs as root\n"},
	} {
		t.Run(name, func(t *testing.T) {
			m := embed(t, c.uid, map[string]string{"a": c.front})
			m.untouched(func() {
				cmd := m.scopefs(touch...)
				if c.cmd != nil {
					cmd = c.cmd(m)
				}
				o := finish(t, cmd)
				assert.Equal(t, 125, o.code)
				assert.Empty(t, o.stdout)
				assert.Equal(t, 1, strings.Count(o.stderr, "\n"), o.stderr)
				assert.Contains(t, o.stderr, c.want)
			})
		})
	}
}

// With a daemon it is the daemon's PATH that counts, and what is installed
// later is found.
func TestRunBubblewrapComes(t *testing.T) {
	m := &way{host: layOut(t, map[string]string{"a": ""}), tmp: t.TempDir()}
	bin := filepath.Join(m.base, "bin")
	require.NoError(t, os.Mkdir(bin, 0o755))
	t.Setenv("PATH", bin)
	m.start()
	o := m.run("a", "--", "true")
	assert.Equal(t, 125, o.code)
	assert.Equal(t, "scopefs: bubblewrap is not installed: apt-get install bubblewrap\n", o.stderr)
	require.NoError(t, os.Symlink("/usr/bin/bwrap", filepath.Join(bin, "bwrap")))
	o = m.run("a", "--", "true")
	assert.Zero(t, o.code, o.stderr)
}

// The limits hold: by control groups, here of version 1.
func TestRunLimits(t *testing.T) {
	m := embed(t, 0, map[string]string{"a": "limits: {pids: 20, memory: 64MiB}"})
	o := m.run("a", "--", "sh", "-c", "i=0; while [ $i -lt 100 ]; do sleep 100 & i=$((i+1)); done")
	assert.Equal(t, 2, o.code)
	assert.Contains(t, o.stderr, "Cannot fork")
	o = m.run("a", "--", "sh", "-c", "head -c 200m /dev/zero | tail -c 150m")
	assert.Equal(t, 137, o.code, o.stderr)
}
