package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// The programs of others that these tests run, from where .ci/clients puts them.
const (
	inspector        = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
	conformance      = "@modelcontextprotocol/conformance/dist/index.js"
	serverFilesystem = "@modelcontextprotocol/server-filesystem/dist/index.js"
)

// needClients ends a test on a machine without the programs of others. The name of the
// test starts with TestClients.
func needClients(t *testing.T) {
	t.Helper()
	require.Contains(t, t.Name(), "TestClients")
	need.All(t, "programs of others from the npm registry")
	if _, err := os.Stat("../../bin/clients/stamp"); err != nil {
		need.Skip(t, "no MCP clients in bin/clients: run .ci/clients: ", err)
	}
}

// theirs returns a command that runs one of their programs, in an environment
// that holds nothing of this machine's user.
func theirs(ctx context.Context, t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	clients, err := filepath.Abs("../../bin/clients")
	require.NoError(t, err)
	cmd := exec.CommandContext(ctx, filepath.Join(clients, "node/bin/node"),
		append([]string{filepath.Join(clients, "node_modules", program)}, args...)...)
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH"), "NO_COLOR=1"}
	return cmd
}

// runTheirs runs a command of theirs to its end.
func runTheirs(t *testing.T, program string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := theirs(ctx, t, program, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Errorf("%s %q: %v", program, args, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// TestClientsInspector uses an agent's tools as the MCP Inspector's command line does,
// by standard input and output and by HTTP.
func TestClientsInspector(t *testing.T) {
	need.Once(t)
	needClients(t)
	h := harness.LayOut(t, map[string]string{"a": "", "b": "tools: [read_file]"})
	url := serveHTTP(h)
	overHTTP := func(agent string) []string {
		return []string{"--header", "Authorization: Bearer " + strings.TrimSpace(h.Must("token", agent)), "--", url}
	}
	overStdio := func(agent string) []string {
		return []string{"--", harness.Program, "--base", h.Base, "mcp", "--agent", agent}
	}
	for name, over := range map[string]func(string) []string{"stdio": overStdio, "http": overHTTP} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(h.Scope("a", "f"), []byte("of the host\n"), 0o644))
			require.NoError(t, os.WriteFile(h.Scope("b", "f"), []byte("of b\n"), 0o644))
			inspect := func(agent string, code int, args ...string) inspected {
				out, errs, got := runTheirs(t, inspector, append(append([]string{"--cli"}, args...), over(agent)...)...)
				var said inspected
				require.Equal(t, code, got, "%q: %s%s", args, out, errs)
				require.NoError(t, json.Unmarshal([]byte(out), &said), "%q: %s%s", args, out, errs)
				return said
			}
			call := func(tool string, args ...string) []string {
				return append([]string{"--method", "tools/call", "--tool-name", tool, "--tool-arg"}, args...)
			}
			// --strict: exit status 6 when clients that are particular cannot use a schema.
			said := inspect("a", 0, "--method", "tools/list", "--strict")
			assert.Subset(t, said.names(), []string{"read_file", "write_file", "edit_file", "bash"})
			assert.Equal(t, []string{"read_file"}, inspect("b", 0, "--method", "tools/list").names())

			said = inspect("a", 0, call("read_file", "path=f")...)
			assert.False(t, said.IsError)
			assert.Equal(t, "of the host\n", said.text())
			assert.Equal(t, "of b\n", inspect("b", 0, call("read_file", "path=f")...).text())

			inspect("a", 0, call("write_file", "path=made/"+name, "content=made by "+name)...)
			made, err := os.ReadFile(h.Scope("a", "made", name))
			require.NoError(t, err)
			assert.Equal(t, "made by "+name, string(made))
			said = inspect("a", 0, call("bash", "command=cat made/"+name)...)
			assert.Contains(t, said.text(), "made by "+name)

			said = inspect("a", 5, call("read_file", "path=../b/f")...)
			assert.True(t, said.IsError)
			assert.Contains(t, said.text(), `"code":"not_found"`)
			said = inspect("a", 5, call("read_file", "path=f", "limit=0")...)
			assert.Contains(t, said.text(), `"code":"invalid"`)
		})
	}
	_, errs, code := runTheirs(t, inspector, "--cli", "--method", "tools/list", "--header", "Authorization: Bearer a.0", "--", url)
	assert.NotZero(t, code)
	assert.Contains(t, errs, "auth_required") // what it makes of a 401
}

// inspected is what the Inspector prints of a list or a result.
type inspected struct {
	Tools []struct {
		Name string `json:"name"`
	} `json:"tools"`
	IsError bool `json:"isError"`
	Content []struct {
		Text string `json:"text"`
	} `json:"content"`
}

func (i inspected) names() (all []string) {
	for _, tool := range i.Tools {
		all = append(all, tool.Name)
	}
	return all
}

func (i inspected) text() (all string) {
	for _, c := range i.Content {
		all += c.Text
	}
	return all
}
