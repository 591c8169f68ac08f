package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestSelftest: no attempt of scopefs selftest reaches what is outside of scopefs. The same attempts do without a sandbox, and
// some do through a mount alone.
func TestSelftest(t *testing.T) {
	need.Long(t, "it makes hundreds of attempts")
	need.Once(t)
	t.Parallel()
	harness.NeedFUSE(t)
	var held []string
	count := func(as func(argv ...string) *exec.Cmd, words ...string) (states map[string]int, failed []string) {
		states, held = map[string]int{}, nil
		out, err := as(append([]string{harness.Program, "selftest", "--json"}, words...)...).Output()
		require.NotEmpty(t, out, err)
		for line := range strings.Lines(string(out)) {
			var one struct{ ID, State, Evidence string }
			require.NoError(t, json.Unmarshal([]byte(line), &one))
			states[one.State]++
			switch one.State {
			case "failed", "not made":
				failed = append(failed, one.ID+": "+one.Evidence)
			case "held":
				held = append(held, one.ID)
			}
		}
		assert.Equal(t, len(failed) > 0, err != nil)
		return states, failed
	}
	root := func(argv ...string) *exec.Cmd { return exec.Command(argv[0], argv[1:]...) }
	states, failed := count(root)
	assert.Empty(t, failed)
	assert.Greater(t, states["held"], 250)

	t.Run("user", func(t *testing.T) { // each attempt has a daemon of its own
		classes, want := []string{"host"}, 10
		if os.Getenv("SCOPEFS_TEST_ALL") == "1" {
			classes, want = nil, 200
		}
		states, failed := count(func(argv ...string) *exec.Cmd { return harness.AsUser(t, accountUID, argv...) }, classes...)
		assert.Empty(t, failed)
		assert.Greater(t, states["held"], want, "%v", states)
	})
	t.Run("none", func(t *testing.T) {
		states, _ := count(root, "--against", "env")
		assert.Greater(t, states["failed"], 100, "%v: the attempts try something", states)
		assert.Less(t, states["held"], 20)
	})
	t.Run("mount", func(t *testing.T) {
		need.Program(t, "bindfs")
		states, _ := count(root, "--against", "bindfs -f {dir} {mnt}", "view")
		held = slices.DeleteFunc(held, func(id string) bool { return strings.HasPrefix(id, "view-race-") }) // nobody must win a race
		assert.Empty(t, held, "%v: each attempt reaches what is outside", states)
		assert.Greater(t, states["failed"], 30)
	})
	out, err := exec.Command(harness.Program, "selftest", "nothing").CombinedOutput()
	assert.Error(t, err)
	assert.Contains(t, string(out), "no attempt is named nothing")
}
