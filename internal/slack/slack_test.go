package slack

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCoarse checks that a process with the kernel's timer slack executes itself again, that every thread then has the
// slack, and that a program which Fine starts has the kernel's.
func TestCoarse(t *testing.T) {
	const role = "SCOPEFS_TEST_SLACK"
	if os.Getenv(role) != "" {
		Coarse()
		all, err := os.ReadDir("/proc/self/task")
		require.NoError(t, err)
		require.Greater(t, len(all), 1)
		for _, task := range all {
			text, err := os.ReadFile("/proc/" + task.Name() + "/timerslack_ns")
			if os.Geteuid() == 0 || err == nil { // another thread's needs CAP_SYS_NICE
				require.NoError(t, err)
				assert.Equal(t, "1000000\n", string(text))
			}
		}
		var out []byte
		Fine(func() { out, err = exec.Command("cat", "/proc/self/timerslack_ns").Output() })
		require.NoError(t, err)
		assert.Equal(t, "50000\n", string(out))
		assert.Equal(t, coarse, ofThread())
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestCoarse$", "-test.v")
	cmd.Env = append(os.Environ(), role+"=1")
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s", out)
	assert.Equal(t, 2, strings.Count(string(out), "=== RUN"), "executed again: %s", out)
}
