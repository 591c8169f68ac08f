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

// TestPackagesAreSmall: no package has more than 4,500 lines without its tests, as a newcomer reads one in a day.
func TestPackagesAreSmall(t *testing.T) {
	lines := map[string]int{}
	require.NoError(t, filepath.WalkDir("../..", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case slices.Contains(made, name):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(name)
		lines[path.Dir(name)] += strings.Count(string(text), "\n")
		return err
	}))
	assert.Greater(t, len(lines), 100)
	for name, n := range lines {
		assert.LessOrEqual(t, n, 4500, "%s: make a package of an idea that it has", name)
	}
}

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
