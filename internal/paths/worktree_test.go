package paths

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWorktreeOf: a .git file is followed to a repository that names the directory, and to nothing else.
func TestWorktreeOf(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	put := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(top, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(top, name), []byte(text), 0o644))
	}
	own := top + "/r/.git/worktrees/w"
	whole := func() {
		require.NoError(t, os.RemoveAll(top))
		require.NoError(t, os.MkdirAll(top+"/r/.git/objects", 0o755))
		require.NoError(t, os.MkdirAll(top+"/r/.git/refs", 0o755))
		put("r/.git/HEAD", "ref: refs/heads/main\n")
		put("r/.git/worktrees/w/commondir", "../..\n")
		put("r/.git/worktrees/w/gitdir", top+"/w/.git\n")
		put("w/.git", "gitdir: "+own+"\n")
	}
	for name, test := range map[string]struct {
		change func()
		want   *Worktree
		err    string
	}{
		"linked": {func() {}, &Worktree{top + "/r/.git", "w"}, ""},
		"relative": {func() {
			put("w/.git", "gitdir: ../r/.git/worktrees/w\n")
			put("r/.git/worktrees/w/gitdir", "../../../../w/.git\n")
		}, &Worktree{top + "/r/.git", "w"}, ""},
		"ordinary":          {func() { _ = os.Remove(top + "/w/.git"); put("w/.git/HEAD", "x") }, nil, ""},
		"none":              {func() { _ = os.Remove(top + "/w/.git") }, nil, ""},
		"a link":            {func() { _ = os.Rename(top+"/w/.git", top+"/w/g"); _ = os.Symlink("g", top+"/w/.git") }, nil, ""},
		"a submodule":       {func() { put("w/.git", "gitdir: "+top+"/r/.git\n") }, nil, "only if you name it: scopefs run --with"},
		"in the directory":  {func() { put("w/.bare/HEAD", "x"); put("w/.git", "gitdir: ./.bare\n") }, nil, ""},
		"dangling":          {func() { put("w/.git", "gitdir: /none\n") }, nil, ""},
		"another directory": {func() { put("r/.git/worktrees/w/gitdir", top+"/other/.git\n"); put("other/.git", "") }, nil, "has no worktree here"},
		"nothing there":     {func() { _ = os.Remove(own + "/gitdir") }, nil, "has no worktree here"},
		"commondir leads":   {func() { put("r/.git/worktrees/w/commondir", "/etc\n") }, nil, "commondir leads elsewhere"},
		"no repository":     {func() { _ = os.RemoveAll(top + "/r/.git/refs") }, nil, "is no repository"},
		"another user":      {func() { require.NoError(t, os.Lchown(top+"/r/.git", 4321, -1)) }, nil, "another user"},
		"inside": {func() {
			put("r/.git/w/.git", "gitdir: "+own+"\n")
			put("r/.git/worktrees/w/gitdir", top+"/r/.git/w/.git\n")
		}, nil, "inside the other"},
	} {
		if name == "another user" && os.Geteuid() != 0 {
			continue
		}
		whole()
		test.change()
		dir := top + "/w"
		if name == "inside" {
			dir = top + "/r/.git/w"
		}
		got, err := WorktreeOf(dir)
		assert.Equal(t, test.want, got, name)
		if test.err == "" {
			assert.NoError(t, err, name)
		} else {
			assert.ErrorContains(t, err, test.err, name)
		}
	}
	whole()
	p := Project{Dir: top + "/w", ID: "w-1", Base: top + "/base"}
	text := p.Text(true)
	assert.Contains(t, text, "  roots: [{dir: \""+top+"/r/.git\", worktree: \"w\"}]\n")
	assert.True(t, p.Unedited(text), "scopefs has written it")
	assert.True(t, p.Unedited(p.Text(false)))
}
