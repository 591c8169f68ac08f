package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/config"
)

// TestPrepare: the first daemon makes {base}/agents, whoever has made {state}. A later one leaves it missing.
func TestPrepare(t *testing.T) {
	for name, c := range map[string]struct {
		state []string // directories end with /
		makes bool
	}{
		"no state":                  {nil, true},
		"StateDirectory":            {[]string{"state/"}, true},
		"a disk":                    {[]string{"state/lost+found/"}, true},
		"a disk for the log":        {[]string{"state/audit/lost+found/"}, true},
		"trust before the first":    {[]string{"state/definitions/seen.json"}, true},
		"there was a daemon before": {[]string{"state/audit/00000001.jsonl"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := config.Paths{Base: t.TempDir()}
			p.State = filepath.Join(p.Base, "state")
			for _, rel := range c.state {
				path := filepath.Join(p.Base, rel)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o711))
				if rel[len(rel)-1] == '/' {
					require.NoError(t, os.MkdirAll(path, 0o711))
				} else {
					require.NoError(t, os.WriteFile(path, nil, 0o600))
				}
			}
			require.NoError(t, prepare(p))
			require.NoError(t, prepare(p), "again")
			assert.Equal(t, c.makes, isDir(filepath.Join(p.Base, "agents")))
		})
	}
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// TestPrepareRefused: the error about a base that cannot be written to has the remedy.
func TestPrepareRefused(t *testing.T) {
	base := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(base, nil, 0o600))
	err := prepare(config.Paths{Base: base, State: filepath.Join(t.TempDir(), "state")})
	assert.EqualError(t, err, "base directory: mkdir "+base+"/agents: not a directory: give a --base that can be written to")
}
