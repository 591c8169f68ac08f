package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/tools"
)

// user is a client of an agent's tools: the official SDK's, which nobody here
// wrote.
type user struct {
	*host
	session *mcp.ClientSession
	process *exec.Cmd     // scopefs mcp; nil by HTTP, of which a transport around it would hide a part
	changed chan struct{} // the list has
	heard   *heard
}

// args are a call's.
type args = map[string]any

// heard keeps what a client was told, a message a line.
type heard struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write takes what mcp.LoggingTransport says.
func (w *heard) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if bytes.HasPrefix(p, []byte("read")) {
		w.text.Write(p)
	}
	return len(p), nil
}

func (w *heard) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// connect starts scopefs mcp for an agent, with further flags.
func (h *host) connect(agent string, flags ...string) *user {
	h.t.Helper()
	return h.connectWith(nil, agent, flags...)
}

func (h *host) connectWith(opt *mcp.ClientOptions, agent string, flags ...string) *user {
	h.t.Helper()
	cmd := exec.Command(program, append([]string{"--base", h.base, "mcp", "--agent", agent}, flags...)...)
	cmd.Stderr = os.Stderr
	return h.attach(opt, cmd, &mcp.CommandTransport{Command: cmd, TerminateDuration: 15 * time.Second})
}

// attach connects by a transport. Whatever a client of these tests is told,
// nothing of it is the host's.
func (h *host) attach(opt *mcp.ClientOptions, cmd *exec.Cmd, transport mcp.Transport) *user {
	h.t.Helper()
	u := &user{host: h, process: cmd, changed: make(chan struct{}, 100), heard: &heard{}}
	if opt == nil {
		opt = &mcp.ClientOptions{}
	}
	opt.ToolListChangedHandler = func(context.Context, *mcp.ToolListChangedRequest) { u.changed <- struct{}{} }
	client := mcp.NewClient(&mcp.Implementation{Name: "integration", Version: "v1"}, opt)
	if cmd != nil {
		transport = &mcp.LoggingTransport{Transport: transport, Writer: u.heard}
	}
	session, err := client.Connect(h.soon(), transport, nil)
	require.NoError(h.t, err)
	u.session = session
	h.t.Cleanup(func() {
		_ = session.Close()
		assert.NotContains(h.t, u.heard.String(), h.base, "a path of the host was told")
	})
	return u
}

// soon is a context for what takes seconds.
func (h *host) soon() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	h.t.Cleanup(cancel)
	return ctx
}

// list returns the tools that may be called, by name.
func (u *user) list() map[string]*mcp.Tool {
	u.t.Helper()
	all := map[string]*mcp.Tool{}
	for tool, err := range u.session.Tools(u.soon(), nil) {
		require.NoError(u.t, err)
		all[tool.Name] = tool
	}
	return all
}

// send calls a tool and returns all that came.
func (u *user) send(ctx context.Context, tool string, a args) (*mcp.CallToolResult, error) {
	if a == nil {
		a = args{}
	}
	return u.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: a})
}

// call calls a tool, which must work, and returns its structured result.
func (u *user) call(tool string, a args) args {
	u.t.Helper()
	r, err := u.send(u.soon(), tool, a)
	require.NoError(u.t, err)
	require.False(u.t, r.IsError, "%s %v: %s", tool, a, said(r))
	out, _ := r.StructuredContent.(map[string]any)
	return out
}

// text calls a tool, which must work, and returns what it says.
func (u *user) text(tool string, a args) string {
	u.t.Helper()
	r, err := u.send(u.soon(), tool, a)
	require.NoError(u.t, err)
	require.False(u.t, r.IsError, "%s %v: %s", tool, a, said(r))
	return said(r)
}

// bash runs a command, which must end with status 0, and returns what it wrote.
func (u *user) bash(command string) string {
	u.t.Helper()
	out := u.call("bash", args{"command": command})
	require.EqualValues(u.t, 0, out["exit_code"], "%s: %v", command, out)
	return strings.TrimSpace(out["stdout"].(string))
}

// fails calls a tool, which must not work, and returns why.
func (u *user) fails(tool string, a args) tools.Error {
	u.t.Helper()
	r, err := u.send(u.soon(), tool, a)
	require.NoError(u.t, err)
	require.True(u.t, r.IsError, "%s %v: %s", tool, a, said(r))
	var e tools.Error
	require.NoError(u.t, json.Unmarshal([]byte(said(r)), &e), said(r))
	require.NotEmpty(u.t, e.Code)
	return e
}

// said is the text of a result.
func said(r *mcp.CallToolResult) string {
	var all []string
	for _, c := range r.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			all = append(all, text.Text)
		}
	}
	return strings.Join(all, "\n")
}

// fits holds a value against a schema as it came over the wire.
func fits(t *testing.T, what string, schema, value any) {
	t.Helper()
	text, err := json.Marshal(schema)
	require.NoError(t, err)
	var s jsonschema.Schema
	require.NoError(t, json.Unmarshal(text, &s), what)
	resolved, err := s.Resolve(nil)
	require.NoError(t, err, what)
	assert.NoError(t, resolved.Validate(value), "%s: %v", what, value)
}

// calls are the events of calls of an agent's tool, in their order.
func (h *host) calls(agent, tool string) (list []audit.Event) {
	for _, e := range h.events(agent) {
		if e.Event == audit.KindCall && e.Op == tool {
			list = append(list, e)
		}
	}
	return list
}

// last is the last event of calls of a tool.
func (h *host) last(agent, tool string) audit.Event {
	h.t.Helper()
	list := h.calls(agent, tool)
	require.NotEmpty(h.t, list, "no call of %s is recorded", tool)
	return list[len(list)-1]
}

// wire is a value as JSON has it.
func wire(t *testing.T, v any) any {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	if string(text) == "null" {
		return args{}
	}
	var out any
	require.NoError(t, json.Unmarshal(text, &out))
	return out
}
