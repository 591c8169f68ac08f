package daemon

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestCapabilities: a daemon of root that has the capabilities of docs/security.md and no
// others serves views of root and of other users, and runs their sandboxes. The shipped unit has the same.
func TestCapabilities(t *testing.T) {
	text := harness.ReadAll(t, "../../docs/security.md")
	_, row, _ := strings.Cut(text, "\n| CAP_SYS_ADMIN")
	row, _, _ = strings.Cut(row, "|")
	all := append([]string{"CAP_SYS_ADMIN"}, regexp.MustCompile(`CAP_[A-Z_]+`).FindAllString(row, -1)...)
	assert.Subset(t, unitKeys(t)["CapabilityBoundingSet"], all)
	h := harness.LayOut(t, map[string]string{"a": `user: "1234"`, "root": ""})
	own(t, h, "a", alice)
	require.NoError(t, os.Chmod(h.Scope("a"), 0o700))
	h.StartBy(few(t, all))
	assert.Equal(t, "mounted", h.Agent("a").State, h.Agent("a").Error)
	for _, id := range []string{"a", "root"} {
		h.Must("run", id, "--", "touch", "x")
		assert.FileExists(t, h.Scope(id, "x"))
	}
	assert.Contains(t, by(h, alice, "call", "list_dir", "path=.", "--agent", "a").Stdout, "x")
}
