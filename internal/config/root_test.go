package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// TestProjectAt: "." is the project that holds the working directory, by an agent or by a file of the same user, and never one
// beyond a repository of git. A path is exact.
func TestProjectAt(t *testing.T) {
	for name, test := range map[string]struct {
		agent string   // a directory that has an agent
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
		"a repository below":    {agent: "p", files: []string{"p/a/.git/"}, want: "p/a/b"},
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
			if test.agent != "" {
				require.NoError(t, os.MkdirAll(filepath.Join(home, test.agent), 0o755))
				p, err := ProjectOf(filepath.Join(home, test.agent))
				require.NoError(t, err)
				require.NoError(t, p.Make(true))
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
