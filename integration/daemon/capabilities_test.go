package daemon

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestCapabilities: a daemon of root that has the capabilities of docs/security.md and no
// others serves views of other users and runs their sandboxes.
func TestCapabilities(t *testing.T) {
	text := harness.ReadAll(t, "../../docs/security.md")
	_, row, _ := strings.Cut(text, "\n| CAP_SYS_ADMIN")
	row, _, _ = strings.Cut(row, "|")
	all := []string{"-all", "+sys_admin"}
	for _, name := range regexp.MustCompile(`CAP_[A-Z_]+`).FindAllString(row, -1) {
		all = append(all, "+"+strings.ToLower(strings.TrimPrefix(name, "CAP_")))
	}
	require.Greater(t, len(all), 5)
	h := harness.LayOut(t, map[string]string{"a": `user: "1234"`})
	own(t, h, "a", alice)
	require.NoError(t, os.Chmod(h.Scope("a"), 0o700))
	wrapper := filepath.Join(t.TempDir(), "few")
	require.NoError(t, os.WriteFile(wrapper, []byte("#!/bin/sh\nexec setpriv --bounding-set "+strings.Join(all, ",")+" --inh-caps -all -- "+harness.Program+` "$@"`+"\n"), 0o755))
	func() {
		defer func(program string) { harness.Program = program }(harness.Program)
		harness.Program = wrapper
		h.Start()
	}()
	assert.Equal(t, "mounted", h.Agent("a").State, h.Agent("a").Error)
	h.Must("run", "a", "--", "touch", "x")
	assert.FileExists(t, h.Scope("a", "x"))
	assert.Contains(t, by(h, alice, "call", "list_dir", "path=.", "--agent", "a").Stdout, "x")
}
