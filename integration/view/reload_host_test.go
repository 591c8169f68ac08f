package view

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestReloadHost: scopefs.yaml is read when the daemon starts. That it has changed
// since is one line of the command and one line of the daemon's log.
func TestReloadHost(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": ""})
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer log.Close()
	h.Stderr = log
	h.Start()
	h.Put("scopefs.yaml", "memory: true\n")
	out, _, code := h.Try("reload")
	assert.Equal(t, "scopefs.yaml: has changed: restart the daemon for that\n", out)
	assert.Equal(t, 1, code)
	var lines []string
	h.Eventually("the daemon's log names the file and the remedy", func() bool {
		lines = nil
		for line := range strings.Lines(string(harness.ReadAll(t, log.Name()))) {
			if strings.Contains(line, "restart the daemon for that") {
				lines = append(lines, line)
			}
		}
		return len(lines) > 0
	})
	assert.Len(t, lines, 1)
	assert.Contains(t, lines[0], "scopefs.yaml")
	assert.NotContains(t, h.Must("call", "--agent", "a", "--list"), "remember")
}
