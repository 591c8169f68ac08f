package cli

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// scopefs call shows a person nothing that steers a terminal, neither in names nor
// in contents; what a program reads is exact.
func TestCallOddNames(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	odd := "x\ny\x1b[2J\u202e"
	content := "red \x1b[31m\ttab\u009b\r\n"
	require.NoError(t, os.WriteFile(h.Scope("a", odd), []byte(content), 0o644))
	quotedName := `"x\ny\x1b[2J\u202e"`

	assert.Equal(t, quotedName+"\t17\n", h.Must("call", "--agent", "a", "list_dir"))
	assert.Equal(t, content, h.Must("call", "--agent", "a", "read_file", "path="+odd))
	var list struct{ Entries []struct{ Path string } }
	require.NoError(t, json.Unmarshal([]byte(h.Must("call", "--agent", "a", "--json", "list_dir")), &list))
	assert.Equal(t, odd, list.Entries[0].Path)
	_, errs, code := h.Try("call", "--agent", "a", "read_file", "path="+odd+"\x7f")
	assert.Equal(t, 1, code)
	assert.NotContains(t, strings.TrimSuffix(errs, "\n"), "\n")
	assert.False(t, strings.ContainsAny(errs, "\x1b\x7f\u202e"), "%q", errs)

	terminal := func(args ...string) string {
		cmd := exec.Command(harness.Program, append([]string{"--base", h.Base, "call", "--agent", "a"}, args...)...)
		f, err := pty.Start(cmd)
		require.NoError(t, err)
		defer f.Close()
		text, _ := io.ReadAll(f) // EIO is the end: pty(7)
		require.NoError(t, cmd.Wait())
		return strings.ReplaceAll(string(text), "\r\n", "\n")
	}
	assert.Equal(t, quotedName+"\t17\n", terminal("list_dir"))
	assert.Equal(t, "red \\u001b[31m\ttab\\u009b\\u000d\n", terminal("read_file", "path="+odd))
}
