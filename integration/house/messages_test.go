package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// others are messages in docs/troubleshooting.md that other programs print.
var others = []string{
	"Permission denied", "No such file or directory", "cannot create directory", "Too many open files", "Too many links",
	"Cannot allocate memory", "Transport endpoint is not connected", "Stale file handle",
	"error: could not write config file .git/config: Permission denied",
	"bwrap: setting up uid map: Operation not permitted",
}

// TestMessagesAreOurs: the sources have each message of docs/troubleshooting.md, up to what varies.
func TestMessagesAreOurs(t *testing.T) {
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	require.NoError(t, err)
	var all strings.Builder
	for _, top := range []string{"audit", "cmd", "fs", "internal", "scope", "tools"} {
		require.NoError(t, filepath.WalkDir(filepath.Join("../..", top), func(name string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return err
			}
			text, err := os.ReadFile(name)
			all.Write(text)
			return err
		}))
	}
	sources := strings.ReplaceAll(all.String(), `\"`, `"`)
	quoted := regexp.MustCompile("`([^`]+)`")
	rows := 0
	for line := range strings.Lines(string(page)) {
		cell, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), " | ")
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		for _, message := range quoted.FindAllStringSubmatch(cell, -1) {
			rows++
			if slices.Contains(others, message[1]) {
				continue
			}
			for piece := range strings.SplitSeq(message[1], "…") {
				piece = strings.Trim(strings.TrimPrefix(piece, `"code":`), " :,")
				assert.True(t, strings.Contains(sources, piece), "%q: docs/troubleshooting.md: %s", piece, message[1])
			}
		}
	}
	assert.Greater(t, rows, 50)
}
