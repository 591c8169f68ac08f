package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/config"
)

// TestPrepareRefused: the error about a base that cannot be written to has the remedy.
func TestPrepareRefused(t *testing.T) {
	base := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(base, nil, 0o600))
	err := prepare(config.Paths{Base: base, State: filepath.Join(t.TempDir(), "state")})
	assert.EqualError(t, err, "base directory: mkdir "+base+"/agents: not a directory: give a --base that can be written to")
}
