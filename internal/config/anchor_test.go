package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAnchorFile: no anchor is a file in a directory of the daemon's, by whatever name the directory is reached.
func TestAnchorFile(t *testing.T) {
	dir := t.TempDir()
	base := filepath.Join(dir, "base")
	require.NoError(t, os.Mkdir(base, 0o700))
	require.NoError(t, os.Symlink(base, dir+"/way"))
	p := Paths{Base: dir + "/way", State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}
	for file, fine := range map[string]bool{
		base + "/heads": false, dir + "/way/agents/a/heads": false, dir + "/state/heads": false, dir + "/run/heads": false,
		dir + "/statement": true, "/mnt/other/heads": true,
	} {
		require.NoError(t, os.WriteFile(base+"/scopefs.yaml", []byte("memory: true\nlog:\n  anchors:\n    - {name: x, file: "+file+"}\n"), 0o600))
		_, err := Load(p, Checks{})
		if fine {
			require.NoError(t, err, file)
			continue
		}
		require.ErrorContains(t, err, "scopefs.yaml:4: anchors: x: file: "+file, file)
		assert.ErrorContains(t, err, "name a file on another file system")
	}
}
