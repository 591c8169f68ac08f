package prompt

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSuggested: the projects of a repository suggest their presets, wherever they stand in it; links and directories none.
func TestSuggested(t *testing.T) {
	for name, test := range map[string]struct {
		files, presets, named []string
	}{
		"nothing":   {[]string{"README.md"}, nil, nil},
		"one":       {[]string{"package.json"}, []string{"npm"}, []string{"package.json"}},
		"packages":  {[]string{"packages/b/package.json", "packages/a/package.json"}, []string{"npm"}, []string{"packages/a/package.json"}},
		"several":   {[]string{"frontend/package.json", "services/api/go.mod", "requirements.txt"}, []string{"npm", "go", "pypi"}, []string{"frontend/package.json", "services/api/go.mod", "requirements.txt"}},
		"too far":   {[]string{"a/b/c/package.json"}, nil, nil},
		"directory": {[]string{"package.json/x"}, nil, nil},
	} {
		dir := t.TempDir()
		for _, file := range test.files {
			require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, file), nil, 0o644))
		}
		presets, files := suggested(dir)
		assert.Equal(t, test.presets, presets, name)
		assert.Equal(t, test.named, files, name)
	}
	outside, dir := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "package.json"), nil, 0o644))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "out")))
	require.NoError(t, os.Symlink(filepath.Join(outside, "package.json"), filepath.Join(dir, "package.json")))
	presets, _ := suggested(dir)
	assert.Empty(t, presets, "a link")
}
