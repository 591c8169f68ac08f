package house

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var packageRow = regexp.MustCompile("(?m)^- `([^`]+)` \\S.*$")

// made are directories that make makes.
var made = []string{"../../bin", "../../demo"}

// TestPackagesAreListed: the list in docs/architecture.md has each directory with Go files once, whichever module it is
// of, with what it holds, and nothing else.
func TestPackagesAreListed(t *testing.T) {
	page, err := os.ReadFile("../../docs/architecture.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n## Packages\n")
	require.True(t, found)
	var listed []string
	for _, row := range packageRow.FindAllStringSubmatch(section, -1) {
		listed = append(listed, row[1])
	}
	there := map[string]bool{}
	require.NoError(t, filepath.WalkDir("../..", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case slices.Contains(made, name), d.IsDir() && name != "../.." && (d.Name()[0] == '.' || d.Name() == "testdata"):
			return fs.SkipDir
		case strings.HasSuffix(name, ".go"):
			there[path.Dir(strings.TrimPrefix(name, "../../"))] = true
		}
		return nil
	}))
	var want []string
	for dir := range there {
		want = append(want, dir)
	}
	assert.ElementsMatch(t, want, listed, "directories with Go files, and the lines of docs/architecture.md: each has exactly one")
}
