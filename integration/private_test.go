package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// opsAs runs operations in a directory as another user of the host.
func (h *host) opsAs(uid uint32, dir string, ops ...string) []string {
	h.t.Helper()
	at := filepath.Join(h.base, "client")
	if _, err := os.Stat(at); err != nil {
		self, err := os.ReadFile("/proc/self/exe")
		require.NoError(h.t, err)
		require.NoError(h.t, os.WriteFile(at, self, 0o755))
	}
	cmd := client("ops")
	cmd.Path, cmd.Dir = at, h.base
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	for i, op := range ops {
		words := strings.Fields(op)
		words[1] = filepath.Join(dir, words[1])
		ops[i] = strings.Join(words, " ")
	}
	return doOps(h.t, cmd, ops)
}

// TestPrivateView: a view is its user's alone, whatever the modes of the files
// say and whatever the kernel remembers, unless its definition lets others in.
func TestPrivateView(t *testing.T) {
	h := layOut(t, map[string]string{"own": "user: 4321", "all": "user: 4321\nview: {allow_other: true}"})
	for _, id := range []string{"own", "all"} {
		plant(t, h.scope(id), "open", "closed", "dir/f", "denied")
		require.NoError(t, os.Chmod(h.scope(id), 0o755))
		require.NoError(t, os.Chmod(h.scope(id, "closed"), 0o600))
		require.NoError(t, exec.Command("chown", "-R", "4321:4321", h.scope(id)).Run())
		require.NoError(t, exec.Command("setfacl", "-m", "u:4322:---", h.scope(id, "denied")).Run())
	}
	h.start()
	ops := func() []string { return []string{"stat open", "read open", "read closed", "list dir f", "read denied"} }
	for _, id := range []string{"own", "all"} {
		assert.Equal(t, []string{"ok", "ok", "ok", "ok", "ok"}, h.opsAs(4321, h.view(id), ops()...), id)
	}
	refused := []string{"EACCES", "EACCES", "EACCES", "EACCES", "EACCES"}
	for _, uid := range []uint32{0, 4322} {
		assert.Equal(t, refused, h.opsAs(uid, h.view("own"), ops()...), "user %d", uid)
	}
	assert.Equal(t, []string{"ok", "ok", "EACCES", "ok", "EACCES"}, h.opsAs(4322, h.view("all"), ops()...))
	assert.Equal(t, []string{"ok", "ok", "ok", "ok", "ok"}, h.opsAs(0, h.view("all"), ops()...))
	assert.Equal(t, "ok", doOps(t, h.inSandbox("own", "ops"), []string{"read closed"})[0])
}
