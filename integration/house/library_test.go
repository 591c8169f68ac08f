package house

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// library are the packages that other modules import.
var library = []string{"audit", "fs", "fs/fusedev", "fs/fusemount", "scope", "scope/beneath", "tools"}

// driverModules are modules of servers, databases and their clients.
var driverModules = []string{"modernc.org/", "nats-io/", "minio/", "redis/", "wneessen/", "lib/pq", "sqlite"}

// TestLibrary: another module that imports the library gets no driver of a store, neither in its programs nor in its
// list of modules.
func TestLibrary(t *testing.T) {
	dir := t.TempDir()
	tree, err := filepath.Abs("../..")
	require.NoError(t, err)
	const version = "v0.0.0-00010101000000-000000000000"
	name := strings.TrimSuffix(module, "/")
	write := func(file, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
	}
	write("go.mod", "module example.com/user\n\ngo 1.26.0\n\nrequire "+name+" "+version+"\n\nreplace "+name+" => "+tree+"\n")
	sums, err := os.ReadFile("../../go.sum")
	require.NoError(t, err)
	write("go.sum", string(sums))
	text := "package main\n\nimport (\n"
	for _, one := range library {
		text += "\t_ \"" + module + one + "\"\n"
	}
	write("main.go", text+")\n\nfunc main() {}\n")
	list := func(args ...string) string {
		cmd := exec.Command("go", append([]string{"list"}, args...)...)
		cmd.Dir, cmd.Stderr = dir, os.Stderr
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod -buildvcs=false", "GOPROXY=off", "GOSUMDB=off")
		out, err := cmd.Output()
		require.NoError(t, err)
		return string(out)
	}
	linked := list("-deps", ".")
	assert.Contains(t, linked, module+"tools\n")
	wanted, err := os.ReadFile(filepath.Join(dir, "go.mod")) // which go list has completed, as go get does
	require.NoError(t, err)
	ours, err := os.ReadFile("../../go.mod") // the rest of the graph; go list -m all would need what no build needs
	require.NoError(t, err)
	for _, driver := range driverModules {
		assert.NotContains(t, linked, driver)
		assert.NotContains(t, strings.ReplaceAll(string(wanted), tree, ""), driver)
		assert.NotContains(t, string(ours), driver)
	}
	t.Logf("%s", wanted)
}
