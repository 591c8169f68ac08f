package judge

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// TestTakeLink: a commit takes the links that the view lets the agent make. A move of a directory can make others of them.
func TestTakeLink(t *testing.T) {
	policy, err := scope.Compile(scope.PolicySpec{})
	require.NoError(t, err)
	top := t.TempDir()
	for _, dir := range []string{"/base", "/branch", "/branch/d", "/outside", "/shown"} {
		require.NoError(t, os.Mkdir(top+dir, 0o755))
	}
	var roots [2]*beneath.Root
	for i, dir := range []string{"/base", "/branch"} {
		roots[i], err = beneath.OpenDir(top + dir)
		require.NoError(t, err)
		defer roots[i].Close()
	}
	roots[1].Shown = []string{top + "/shown"}
	for text, ok := range map[string]bool{
		"../f": true, "dangling": true, "/workspace/f": true, "loop": true, "/usr/bin/env": true, top + "/shown/f": true,
		"../../outside": false, "../..": false, "/tmp": false, top + "/outside": false, "/workspace/../tmp": false, "out/f": false,
	} {
		for name, text := range map[string]string{"/branch/d/l": text, "/branch/d/loop": "loop", "/branch/d/out": "../../outside"} {
			_ = os.Remove(top + name)
			require.NoError(t, os.Symlink(text, top+name))
		}
		assert.Equal(t, ok, Take(policy, roots[0], roots[1], "d/l") == nil, text)
		assert.Equal(t, ok, Link(policy, roots[1], "d/l", text) == nil, text)
	}
	assert.ErrorContains(t, Take(policy, roots[0], roots[1], "d/out"), `"d/out" leads outside the scope`)
}

// TestTakeIndex: a commit takes no index into a repository whose config has another format of objects' names, whichever the branch has.
func TestTakeIndex(t *testing.T) {
	policy, err := scope.Compile(scope.PolicySpec{Git: &scope.GitRules{Config: []string{}}})
	require.NoError(t, err)
	top := t.TempDir()
	const sha256 = "[extensions]\n\tobjectformat = sha256\n"
	for _, configs := range []map[string]string{{}, {"base": sha256}, {"branch": sha256}} {
		var roots [2]*beneath.Root
		for i, dir := range []string{"base", "branch"} {
			git := filepath.Join(top, dir, "r/.git")
			require.NoError(t, os.MkdirAll(git, 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(git, "config"), []byte(configs[dir]), 0o644))
			require.NoError(t, os.WriteFile(filepath.Join(git, "index"), append([]byte("DIRC\x00\x00\x00\x02\x00\x00\x00\x00"), make([]byte, 20)...), 0o644))
			roots[i], err = beneath.OpenDir(filepath.Join(top, dir))
			require.NoError(t, err)
			defer roots[i].Close()
		}
		assert.Equal(t, len(configs) == 0, Take(policy, roots[0], roots[1], "r/.git/index") == nil, configs)
	}
}
