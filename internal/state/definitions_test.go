package state

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSeen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	assert.Nil(t, Seen(dir))
	assert.NoDirExists(t, dir, "who only asks makes nothing")
	want := map[string]string{"agents.d/a.md": "00ff"}
	require.NoError(t, KeepSeen(dir, want))
	assert.Equal(t, want, Seen(dir))
	require.NoError(t, os.WriteFile(filepath.Join(dir, definitionsDir, seenFile), []byte("{"), 0o600))
	assert.Nil(t, Seen(dir), "what is damaged is nothing")
}
