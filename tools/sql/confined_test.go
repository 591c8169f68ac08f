package sql

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/share"
)

// An engine that an attacker has taken over has its two files, and nothing else.
func TestConfined(t *testing.T) {
	need.Long(t, "it takes seconds")
	need.Long(t, "builds an attacker")
	a := newAgent(t, Limits{}, false) // or it skips
	attacker := filepath.Join(filepath.Dir(program), "confined")
	build := exec.Command("go", "build", "-o", attacker, testPrograms+"confined")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	p, err := Exec{Files: share.File{Dir: filepath.Dir(a.file)}, Program: attacker, Stderr: os.Stderr, User: func(scope.ID) (uid, gid uint32) { return testUser, testUser }}.Start(t.Context(), "a")
	require.NoError(t, err)
	lines := bufio.NewScanner(p.Out)
	require.True(t, lines.Scan())
	require.Contains(t, lines.Text(), "confined: [root: two files capabilities: none landlock: ABI")
	tried := 0
	for lines.Scan() {
		what, answer, _ := strings.Cut(lines.Text(), ": ")
		if what == "own" {
			assert.Contains(t, answer, "<nil>")
			continue
		}
		tried++
		want := []string{"EPERM", "EACCES", "EROFS"}
		if what == "passwd" || what == "proc" || what == "up" {
			want = []string{"ENOENT"}
		}
		assert.Contains(t, want, answer, what)
	}
	assert.Equal(t, 30, tried)
	require.NoError(t, p.Wait())
	p.In.Close()
	p.Out.Close()
}

// The process has the agent's user and no name for anything of the host.
func TestProcess(t *testing.T) {
	a := newAgent(t, Limits{}, false)
	var pid int
	a.must(t, "CREATE TABLE t (x)")
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, e := range entries {
		text, _ := os.ReadFile("/proc/" + e.Name() + "/status")
		if strings.Contains(string(text), fmt.Sprintf("\nPPid:\t%d\n", os.Getpid())) && strings.Contains(string(text), fmt.Sprintf("\nUid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", testUser)) {
			_, _ = fmt.Sscan(e.Name(), &pid)
			for _, want := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "Groups:\t \n"} {
				assert.Contains(t, string(text), want)
			}
		}
	}
	require.NotZero(t, pid, "a process of the agent's user")
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	require.NoError(t, err)
	assert.Equal(t, "GOMAXPROCS=2\x00", string(env))
}
