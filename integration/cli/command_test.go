package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestCommandAlone: with a daemon, scopefs does run, call and mcp itself. For the rest it needs scopefsd, and says how to install it.
func TestCommandAlone(t *testing.T) {
	t.Parallel()
	harness.NeedFUSE(t)
	h := harness.NewHost(t, map[string]string{"a": ""})
	harness.Plant(t, h.Scope("a"), "f")
	text, err := os.ReadFile(harness.Program)
	require.NoError(t, err)
	alone := filepath.Join(t.TempDir(), "scopefs")
	harness.Executable(t, alone, text)
	scopefs := func(input string, words ...string) (out, errs string, code int) {
		cmd := exec.Command(alone, append([]string{"--base", h.Base}, words...)...)
		var stdout, stderr bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
		_ = cmd.Run()
		return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
	}

	out, errs, code := scopefs("text", "run", "a", "--", "sh", "-c", "cat; exit 3")
	assert.Equal(t, "text", out, errs)
	assert.Equal(t, 3, code)
	out, errs, code = scopefs("", "run", "a", "--", "/no/such/program")
	assert.Equal(t, 127, code, out+errs)
	out, errs, code = scopefs("", "call", "bash", "command=echo said; exit 4", "--agent", "a", "--exit-status")
	assert.Contains(t, out, "said", errs)
	assert.Equal(t, 4, code)
	out, errs, _ = scopefs(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`+"\n",
		"mcp", "--agent", "a")
	assert.Contains(t, out, `"serverInfo"`, errs)

	out, errs, code = scopefs("", "ps")
	assert.Equal(t, 1, code, out)
	assert.Equal(t, "scopefs: scopefsd is not installed beside scopefs: make build builds it, make install and the package install it\n", errs)
}
