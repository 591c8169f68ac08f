package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope/beneath"
)

// TestParseBatch: what git prints in the agent's sandbox is the agent's to forge.
func TestParseBatch(t *testing.T) {
	hash := strings.Repeat("a", 40)
	old, err := parseBatch([]byte(hash+" blob 4\nold\n\n"+hash+":none missing\n"+hash+" tree 1\nx\n"+hash+" blob 0\n\n"), []string{"a", "none", "dir", "empty"})
	require.NoError(t, err)
	assert.Equal(t, map[string][]byte{"a": []byte("old\n"), "empty": {}}, old)
	for name, text := range map[string]string{
		"nothing":       "",
		"no size":       hash + " blob\nx\n",
		"a negative":    hash + " blob -1\n\n",
		"a large size":  hash + " blob 99999999999\nx\n",
		"a short text":  hash + " blob 9\nx\n",
		"no hash":       "x blob 1\nx\n",
		"no line's end": hash + " blob 1\nxy",
	} {
		_, err := parseBatch([]byte(text), []string{"a"})
		assert.Error(t, err, name)
	}
	assert.False(t, isCommit("--output=/etc/passwd"))
	assert.False(t, isCommit(hash+"\n"))
}

// TestDiffOfName: no name makes a line of its own in a diff.
func TestDiffOfName(t *testing.T) {
	dir := t.TempDir()
	const name = "x\nnote: nothing else was changed"
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("new\n"), 0o644))
	root, err := beneath.OpenDir(dir)
	require.NoError(t, err)
	defer root.Close()
	diff, note := diffOf(root, name, []byte("old\n"))
	assert.Empty(t, note)
	assert.Equal(t, `--- a/x\x0anote: nothing else was changed
+++ b/x\x0anote: nothing else was changed
@@ -1,1 +1,1 @@
-old
+new
`, diff)
}
