package view

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// opsAs runs operations in a directory as another user of the host.
func opsAs(h *harness.Host, uid uint32, dir string, ops ...string) []string {
	h.T.Helper()
	cmd := h.RoleAs(uid, h.Base, "ops")
	for i, op := range ops {
		words := strings.Fields(op)
		words[1] = filepath.Join(dir, words[1])
		ops[i] = strings.Join(words, " ")
	}
	return harness.DoOps(h.T, cmd, ops)
}

// TestPrivateView: a view is its user's alone, whatever the modes of the files
// say and whatever the kernel remembers, unless its definition lets others in.
func TestPrivateView(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"own": "user: 4321", "all": "user: 4321\nview: {allow_other: true}"})
	for _, id := range []string{"own", "all"} {
		harness.Plant(t, h.Scope(id), "open", "closed", "dir/f", "denied")
		require.NoError(t, os.Chmod(h.Scope(id), 0o755))
		require.NoError(t, os.Chmod(h.Scope(id, "closed"), 0o600))
		require.NoError(t, exec.Command("chown", "-R", "4321:4321", h.Scope(id)).Run())
		require.NoError(t, exec.Command("setfacl", "-m", "u:4322:---", h.Scope(id, "denied")).Run())
	}
	h.Start()
	ops := func() []string { return []string{"stat open", "read open", "read closed", "list dir f", "read denied"} }
	for _, id := range []string{"own", "all"} {
		assert.Equal(t, []string{"ok", "ok", "ok", "ok", "ok"}, opsAs(h, 4321, h.View(id), ops()...), id)
	}
	refused := []string{"EACCES", "EACCES", "EACCES", "EACCES", "EACCES"}
	for _, uid := range []uint32{0, 4322} {
		assert.Equal(t, refused, opsAs(h, uid, h.View("own"), ops()...), "user %d", uid)
	}
	assert.Equal(t, []string{"ok", "ok", "EACCES", "ok", "EACCES"}, opsAs(h, 4322, h.View("all"), ops()...))
	assert.Equal(t, []string{"ok", "ok", "ok", "ok", "ok"}, opsAs(h, 0, h.View("all"), ops()...))
	assert.Equal(t, "ok", harness.DoOps(t, h.InSandbox("own", "ops"), []string{"read closed"})[0])
}
