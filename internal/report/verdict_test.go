package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
)

// defined returns the base of an agent a with a front matter, and its definitions.
func defined(t *testing.T, front string) (config.Paths, *definitions.Set) {
	t.Helper()
	base := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(base, "agents", "a"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d/a.md"), []byte("---\nname: a\n"+front+"\n---\n"), 0o644))
	p, err := config.Paths{Base: base}.Complete()
	require.NoError(t, err)
	known := definitions.Read(p, nil)
	require.NoError(t, known.Err)
	require.Empty(t, known.Errs)
	return p, known
}

// TestCheckAsks: of a path with ask, check says that opening it waits for an approval, whichever operation on the file it is asked
// about; names and attributes are allowed.
func TestCheckAsks(t *testing.T) {
	p, _ := defined(t, "view: {paths: {docs/**: ask, docs/old/**: read, key: hide}}")
	for name, want := range map[string]string{
		"read docs/x": "ask", "open docs/x": "ask", "write docs/x": "ask", "open-write docs/x": "ask", "stat docs/x": "allow",
		"readdir docs": "allow", "read docs/old/x": "ask", "write docs/old/x": "deny", "read x": "allow", "write x": "allow", "read key": "deny",
	} {
		op, path, _ := strings.Cut(name, " ")
		v, err := CheckPath(p, "a", path, op)
		require.NoError(t, err, name)
		assert.Equal(t, want, v.Verdict, name)
		assert.Equal(t, want == "ask", v.Remedy != "", name)
	}
}
