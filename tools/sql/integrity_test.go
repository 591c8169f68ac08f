package sql

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// integrity returns what SQLite finds wrong in a database, or "ok".
func integrity(t *testing.T, name string) string {
	cmd := exec.Command("go", "run", testPrograms+"integrity", name)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}
