package view

import (
	"bytes"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

//go:embed testdata/library.go.txt
var libraryProgram []byte

// TestLibrary: a program in another module mounts a view and calls a tool of its
// own, in less than 60 lines.
func TestLibrary(t *testing.T) {
	harness.NeedFUSE(t)
	assert.Less(t, bytes.Count(libraryProgram, []byte("\n")), 60)
	repository, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	sums, err := os.ReadFile(filepath.Join(repository, "go.sum"))
	require.NoError(t, err)
	for name, text := range map[string][]byte{
		"go.mod":  []byte("module example.org/program\n\ngo 1.26.0\n\nrequire github.com/scopefs/scopefs v0.0.0\n\nreplace github.com/scopefs/scopefs => " + repository + "\n"),
		"go.sum":  sums,
		"main.go": libraryProgram,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
	program := filepath.Join(dir, "program")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = dir
	// With the flags of make test: with others the standard library and all others would be compiled anew.
	build.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=mod", "GOPROXY=off", "GOWORK=off")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	scope, mount, log := t.TempDir(), t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(scope, "note"), []byte("hello"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(scope, ".env"), []byte("secret"), 0o644))
	cmd := exec.Command(program, scope, mount, log)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line := make([]byte, 256)
	n, _ := stdout.Read(line)
	assert.Equal(t, "{\"sum\":5}\n", string(line[:n]), "the tool's result; %s", &stderr)

	text, err := os.ReadFile(filepath.Join(mount, "note"))
	assert.NoError(t, err)
	assert.Equal(t, "hello", string(text))
	_, err = os.ReadFile(filepath.Join(mount, ".env"))
	assert.ErrorIs(t, err, os.ErrNotExist, "its policy hides it")

	stdin.Close() // it unmounts and ends
	assert.NoError(t, cmd.Wait(), "%s", &stderr)
	entries, err := os.ReadDir(mount)
	assert.NoError(t, err)
	assert.Empty(t, entries, "nothing is mounted any more")

	lines, err := os.ReadFile(filepath.Join(log, "00000001.jsonl"))
	require.NoError(t, err)
	for _, want := range []string{`"op":"add"`, `"path":".env"`, `"verdict":"deny"`, `"agent":"a"`} {
		assert.Contains(t, string(lines), want)
	}
}
