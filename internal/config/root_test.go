package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/paths"
)

// TestProjectAt: "." is the project that holds the working directory: by the nearest agent, whatever is between, for an agent can
// make a repository of git below its project; else by a file of the same user in the same repository. A path is exact.
func TestProjectAt(t *testing.T) {
	for name, test := range map[string]struct {
		agent string   // the directories that have an agent
		files []string // that exist; a name that ends in / is a directory
		other string   // a file of another user
		dir   string   // "": "."
		want  string   // of home
	}{
		"nothing":               {want: "p/a/b"},
		"the agent":             {agent: "p", want: "p"},
		"the agent of a path":   {agent: "p", dir: "../b", want: "p/a/b"},
		"the nearest agent":     {agent: "p/a", files: []string{"p/.scopefs.yaml"}, want: "p/a"},
		"its own file":          {files: []string{"p/a/b/.scopefs.yaml", "p/.scopefs.yaml"}, want: "p/a/b"},
		"a file":                {files: []string{"p/a/.scopefs.yaml", "p/.scopefs.yaml"}, want: "p/a"},
		"a file of a path":      {files: []string{"p/.scopefs.yaml"}, dir: "./.", want: "p"},
		"an agent over a file":  {agent: "p", files: []string{"p/a/b/.scopefs.yaml"}, want: "p"},
		"the top of a tree":     {agent: "p", files: []string{"p/.git/"}, want: "p"},
		"a repository below":    {agent: "p", files: []string{"p/a/.git/"}, want: "p"},
		"a work tree's file":    {agent: "p", files: []string{"p/a/b/.git"}, want: "p"},
		"all that can be made":  {agent: "p", files: []string{"p/a/.git/", "p/a/b/.git/", "p/a/b/.scopefs.yaml", "p/a/.scopefs.yaml"}, want: "p"},
		"a repository's agent":  {agent: "p p/a", files: []string{"p/a/.git/"}, want: "p/a"},
		"an agent here":         {agent: "p p/a/b", files: []string{"p/a/.git/"}, want: "p/a/b"},
		"a repository's path":   {agent: "p", files: []string{"p/a/b/.git/"}, dir: "../b", want: "p/a/b"},
		"a work tree below":     {files: []string{"p/.scopefs.yaml", "p/a/b/.git"}, want: "p/a/b"},
		"a file of HOME":        {files: []string{".scopefs.yaml"}, want: "p/a/b"},
		"a directory":           {files: []string{"p/.scopefs.yaml/"}, want: "p/a/b"},
		"another user's file":   {files: []string{"p/.scopefs.yaml"}, other: "p/.scopefs.yaml", want: "p/a/b"},
		"another's directory":   {files: []string{"p/.scopefs.yaml"}, other: "p", want: "p/a/b"},
		"an agent of a sibling": {agent: "p/c", want: "p/a/b"},
	} {
		t.Run(name, func(t *testing.T) {
			home, err := filepath.EvalSymlinks(t.TempDir())
			require.NoError(t, err)
			t.Setenv("HOME", home)
			t.Setenv("XDG_STATE_HOME", filepath.Join(home, ".local/state"))
			t.Setenv("TMPDIR", filepath.Join(home, "tmp"))
			require.NoError(t, os.MkdirAll(filepath.Join(home, "p/a/b"), 0o755))
			for _, file := range test.files {
				at := filepath.Join(home, file)
				if file[len(file)-1] == '/' {
					require.NoError(t, os.MkdirAll(at, 0o755))
					continue
				}
				require.NoError(t, os.WriteFile(at, []byte("tools: []\n"), 0o644))
			}
			for dir := range strings.FieldsSeq(test.agent) {
				require.NoError(t, os.MkdirAll(filepath.Join(home, dir), 0o755))
				makeAt(t, filepath.Join(home, dir))
			}
			if test.other != "" {
				need.Root(t, "gives files to another user")
				require.NoError(t, os.Chown(filepath.Join(home, test.other), 1234, -1))
			}
			t.Chdir(filepath.Join(home, "p/a/b"))
			dir := test.dir
			if dir == "" {
				dir = "."
			}
			p, err := ProjectAt(dir)
			require.NoError(t, err)
			assert.Equal(t, filepath.Join(home, test.want), p.Dir)
			assert.Equal(t, filepath.Join(home, "p/a/b"), filepath.Join(p.Dir, p.Below))
		})
	}
}

// makeAt returns the project of a directory, with its definition.
func makeAt(t *testing.T, dir string) Project {
	t.Helper()
	p, err := ProjectOf(dir)
	require.NoError(t, err)
	require.NoError(t, p.Make(true))
	return p
}

// home returns the HOME of a user without projects.
func home(t *testing.T) string {
	t.Helper()
	home, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", filepath.Join(home, ".local/state"))
	t.Setenv("TMPDIR", filepath.Join(home, "tmp"))
	return home
}

// TestProjectAbove: the definition makes a project. One that was removed is none, one that cannot be looked up is an error, and
// one of a directory that may not be a project starts nothing.
func TestProjectAbove(t *testing.T) {
	home := home(t)
	sub := filepath.Join(home, "p/sub")
	require.NoError(t, os.MkdirAll(sub, 0o755))
	p := makeAt(t, filepath.Dir(sub))
	t.Chdir(sub)
	at := func() string {
		at, err := ProjectAt(".")
		require.NoError(t, err)
		return at.Dir
	}
	assert.Equal(t, p.Dir, at())
	require.NoError(t, os.Rename(p.Definition(), p.Definition()+".old"))
	assert.Equal(t, sub, at())
	require.NoError(t, os.Rename(p.Definition()+".old", p.Definition()))

	// What stands in the place of the state may hide rules.
	require.NoError(t, os.Rename(p.Base, p.Base+".old"))
	require.NoError(t, os.WriteFile(p.Base, nil, 0o600))
	for _, dir := range []string{".", sub} {
		_, err := ProjectAt(dir)
		assert.ErrorContains(t, err, "whether "+p.Dir+" has an agent", dir)
	}
	require.NoError(t, os.RemoveAll(p.Base))

	// A project of HOME or above it is refused, and not passed over.
	of, err := ProjectOf(home)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(of.Definition()), 0o700))
	require.NoError(t, paths.Replace(of.Definition(), of.Text(true)))
	found, err := ProjectAt(".")
	require.NoError(t, err)
	assert.Equal(t, home, found.Dir)
	assert.ErrorContains(t, found.Make(true), "holds your home directory")
}

// TestProjectLinks: an agent makes a symbolic link below its project that leads out of it. What is started there is not the
// working directory's own agent.
func TestProjectLinks(t *testing.T) {
	home := home(t)
	for _, dir := range []string{"p/sub", "out/x", "q/x"} {
		require.NoError(t, os.MkdirAll(filepath.Join(home, dir), 0o755))
	}
	p, q := makeAt(t, filepath.Join(home, "p")), makeAt(t, filepath.Join(home, "q"))
	for link, to := range map[string]string{"p/out": "out", "p/in": "p/sub", "p/q": "q", "in": "p/sub"} {
		require.NoError(t, os.Symlink(filepath.Join(home, to), filepath.Join(home, link)))
	}
	for link, want := range map[string]string{"p/in": p.Dir, "in": p.Dir, "p/q": q.Dir, "p/q/x": q.Dir, "p/out": "", "p/out/x": "", "out/x": filepath.Join(home, "out/x")} {
		t.Run(link, func(t *testing.T) {
			t.Chdir(filepath.Join(home, link)) // sets PWD, as a shell does
			at, err := ProjectAt(".")
			if want == "" {
				assert.ErrorContains(t, err, "leads out of the project "+p.Dir)
				at, err = ProjectAt(filepath.Join(home, link))
				require.NotNil(t, at.Above)
				assert.Equal(t, p.Dir, at.Above.Dir)
			}
			require.NoError(t, err)
			if want != "" {
				assert.Equal(t, want, at.Dir)
			}
		})
	}
}
