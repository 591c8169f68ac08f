package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestTimerSlack checks that the processes which a call passes have a timer slack of a millisecond, which keeps the
// runtime's monitor thread off the processors, and that programs have the kernel's.
func TestTimerSlack(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	user := h.Connect("a")
	user.Call("stat", map[string]any{"path": "."})
	const show = "cat /proc/self/timerslack_ns"
	assert.Equal(t, "50000", user.Bash(show))
	assert.Equal(t, "50000\n", h.Must("run", "a", "--", "sh", "-c", show))

	found := map[string]bool{}
	all, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, dir := range all {
		line, _ := os.ReadFile(dir + "/cmdline")
		role := roleOf(strings.Split(string(line), "\x00"))
		if role == "" || !ours(dir) {
			continue
		}
		slack, err := os.ReadFile(dir + "/timerslack_ns")
		require.NoError(t, err)
		assert.Equal(t, "1000000\n", string(slack), role)
		found[role] = true
	}
	assert.Len(t, found, 5, "%v", found)
}

func roleOf(words []string) string {
	for _, word := range words {
		switch word {
		case "daemon", "mcp", "scopefs-files", "scopefs-log", "scopefs-view":
			return word
		}
	}
	return ""
}

// ours reports whether a process, given by its directory in /proc, or an ancestor of it runs the tested program.
func ours(dir string) bool {
	for range 20 {
		if exe, _ := os.Readlink(dir + "/exe"); exe == harness.Program || exe == harness.Daemon() {
			return true
		}
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			return false
		}
		var state string
		var parent int
		if _, err := fmt.Sscan(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), &state, &parent); err != nil {
			return false
		}
		dir = fmt.Sprintf("/proc/%d", parent)
	}
	return false
}
