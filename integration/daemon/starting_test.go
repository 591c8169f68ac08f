package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestStartingTools: a client of the tools that comes while the daemon mounts its agents waits for the agent.
func TestStartingTools(t *testing.T) {
	t.Parallel()
	const all = 40
	defs := map[string]string{}
	for i := range all {
		defs[fmt.Sprintf("a%02d", i)] = "tools: [stat]"
	}
	h := harness.LayOut(t, defs)
	h.Launch()
	h.Eventually("the daemon answers", func() bool {
		_, err := os.Stat(filepath.Join(h.Base, "run", "control.sock"))
		return err == nil
	})
	var calls sync.WaitGroup
	for i := 0; i < all; i += 13 {
		calls.Go(func() {
			out, errs, code := h.Try("call", "--list", "--agent", fmt.Sprintf("a%02d", i))
			assert.Zero(t, code, errs)
			assert.Contains(t, out, "stat")
		})
	}
	calls.Wait()
	h.Must("down", "a01")
	_, errs, code := h.Try("call", "--list", "--agent", "a01")
	assert.Equal(t, 1, code)
	assert.Equal(t, "scopefs: \"a01\" is not mounted: scopefs up a01\n", errs)
}
