package tools

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestExampleDelegation runs the example of docs/delegation.md as it is, but for
// where the runner is.
func TestExampleDelegation(t *testing.T) {
	h := harness.LayOut(t, nil)
	example := filepath.Join("../..", "docs", "examples", "delegation")
	require.NoError(t, os.CopyFS(h.Base, os.DirFS(example)))
	require.NoError(t, os.Mkdir(filepath.Join(h.Base, "opt"), 0o755))
	require.NoError(t, os.Rename(filepath.Join(h.Base, "runner.sh"), filepath.Join(h.Base, "opt", "runner.sh")))
	require.NoError(t, os.Chmod(filepath.Join(h.Base, "opt", "runner.sh"), 0o755))
	text := strings.ReplaceAll(string(harness.ReadAll(t, filepath.Join(h.Base, "scopefs.yaml"))), "/opt/scopefs-example", filepath.Join(h.Base, "opt"))
	h.Put("scopefs.yaml", text)
	h.Start()
	out := h.Must("call", "delegate", "--agent", "editor", "member=writer", "task=write about tea")
	assert.Equal(t, "The draft is in draft.txt; the checker says: it is short enough.\n", out)
	assert.Equal(t, "All there is to say about tea.", string(harness.ReadAll(t, h.Scope("writer", "draft.txt"))))
	assert.Equal(t, "check: All there is to say about tea.", string(harness.ReadAll(t, h.Scope("checker", "checked.txt"))))
	assert.Contains(t, h.Must("audit", "--agent", "checker", "--json"), `"chain":"editor>writer>checker"`)
}
