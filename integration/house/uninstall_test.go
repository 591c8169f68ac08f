package house

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestUninstall: the commands of docs/operating.md remove each file that packaging/install has installed.
func TestUninstall(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	tree, prefix := t.TempDir(), t.TempDir()
	for _, name := range []string{"LICENSE", "README.md", "docs", "cmd"} {
		require.NoError(t, os.Symlink(filepath.Join(root, name), filepath.Join(tree, name)))
	}
	require.NoError(t, os.CopyFS(filepath.Join(tree, "packaging"), os.DirFS(filepath.Join(root, "packaging"))))
	require.NoError(t, os.MkdirAll(filepath.Join(tree, "bin/pages/man1"), 0o755))
	programs, err := filepath.Glob(filepath.Join(root, "cmd/*"))
	require.NoError(t, err)
	made := []string{"pages/man1/scopefs.1", "pages/man1/scopefs-run.1", "pages/scopefs.bash", "pages/_scopefs", "pages/scopefs.fish"}
	for _, p := range programs {
		made = append(made, filepath.Base(p))
	}
	for _, name := range made {
		require.NoError(t, os.WriteFile(filepath.Join(tree, "bin", name), nil, 0o755))
	}
	out, err := exec.Command("bash", filepath.Join(tree, "packaging/install"), filepath.Join(tree, "bin/scopefs"), "", prefix).CombinedOutput()
	require.NoError(t, err, string(out))
	require.FileExists(t, filepath.Join(prefix, "bin/scopefs"))
	page, err := os.ReadFile(filepath.Join(root, "docs/operating.md"))
	require.NoError(t, err)
	commands := regexp.MustCompile(`(?m)^    # cd /usr/local\n    # (rm .*)\n    # (rm .*)$`).FindSubmatch(page)
	require.Len(t, commands, 3)
	cmd := exec.Command("sh", "-ec", string(commands[1])+"\n"+string(commands[2]))
	cmd.Dir = prefix
	out, err = cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, filepath.WalkDir(prefix, func(name string, d os.DirEntry, err error) error {
		assert.True(t, d.IsDir(), name)
		return err
	}))
}
