package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestExampleDelegation runs the example of docs/delegation.md as it is, but for
// where the runner is.
func TestExampleDelegation(t *testing.T) {
	h := layOut(t, nil)
	example := filepath.Join("..", "docs", "examples", "delegation")
	require.NoError(t, os.CopyFS(h.base, os.DirFS(example)))
	require.NoError(t, os.Mkdir(filepath.Join(h.base, "opt"), 0o755))
	require.NoError(t, os.Rename(filepath.Join(h.base, "runner.sh"), filepath.Join(h.base, "opt", "runner.sh")))
	require.NoError(t, os.Chmod(filepath.Join(h.base, "opt", "runner.sh"), 0o755))
	text := strings.ReplaceAll(string(readAll(t, filepath.Join(h.base, "scopefs.yaml"))), "/opt/scopefs-example", filepath.Join(h.base, "opt"))
	h.put("scopefs.yaml", text)
	h.start()
	out := h.must("call", "delegate", "--agent", "editor", "member=writer", "task=write about tea")
	assert.Equal(t, "The draft is in draft.txt; the checker says: it is short enough.\n", out)
	assert.Equal(t, "All there is to say about tea.", string(readAll(t, h.scope("writer", "draft.txt"))))
	assert.Equal(t, "check: All there is to say about tea.", string(readAll(t, h.scope("checker", "checked.txt"))))
	assert.Contains(t, h.must("audit", "--agent", "checker", "--json"), `"chain":"editor>writer>checker"`)
}
