package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/mcp/names"
)

// args are the arguments of a call.
type args = map[string]any

// User is a client of an agent's tools, by the official SDK.
type User struct {
	*Host
	Session *mcp.ClientSession
	Process *exec.Cmd     // scopefs mcp; nil by HTTP, where a transport around the SDK's would hide a part of it
	Changed chan struct{} // receives when the list of tools has changed
	Heard   *Heard
}

// Heard keeps the messages to a client, a line each.
type Heard struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write takes the lines of mcp.LoggingTransport.
func (w *Heard) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if bytes.HasPrefix(p, []byte("read")) {
		w.text.Write(p)
	}
	return len(p), nil
}

// Reset drops the messages so far.
func (w *Heard) Reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Reset()
}

func (w *Heard) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// Connect starts scopefs mcp for an agent, with further flags.
func (h *Host) Connect(agent string, flags ...string) *User {
	h.T.Helper()
	return h.ConnectWith(nil, agent, flags...)
}

// ConnectWith is Connect with options of the SDK's client.
func (h *Host) ConnectWith(opt *mcp.ClientOptions, agent string, flags ...string) *User {
	h.T.Helper()
	cmd := exec.Command(Program, append([]string{"--base", h.Base, "mcp", "--agent", agent}, flags...)...)
	cmd.Stderr = os.Stderr
	return h.Attach(opt, cmd, &mcp.CommandTransport{Command: cmd, TerminateDuration: 15 * time.Second})
}

// subscribes is the first version of MCP whose clients subscribe to changes of the list.
const subscribes = "2026-07-28"

// Attach connects by a transport. When the test ends it checks that no message had a path
// of the host.
func (h *Host) Attach(opt *mcp.ClientOptions, cmd *exec.Cmd, transport mcp.Transport) *User {
	h.T.Helper()
	u := &User{Host: h, Process: cmd, Changed: make(chan struct{}, 100), Heard: &Heard{}}
	if opt == nil {
		opt = &mcp.ClientOptions{}
	}
	opt.ToolListChangedHandler = func(context.Context, *mcp.ToolListChangedRequest) { u.Changed <- struct{}{} }
	client := mcp.NewClient(&mcp.Implementation{Name: "integration", Version: "v1"}, opt)
	subscribed := make(chan struct{})
	var once sync.Once
	client.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if method == "notifications/subscriptions/acknowledged" {
				once.Do(func() { close(subscribed) }) // a new daemon acknowledges it again
			}
			return next(ctx, method, req)
		}
	})
	if cmd != nil {
		transport = &mcp.LoggingTransport{Transport: transport, Writer: u.Heard}
	}
	session, err := client.Connect(h.Soon(), transport, nil)
	require.NoError(h.T, err)
	u.Session = session
	if session.InitializeResult().ProtocolVersion >= subscribes {
		select { // Connect does not wait for it, and a change before it is not told
		case <-subscribed:
		case <-h.Soon().Done():
			h.T.Fatal("the client's subscription is not acknowledged")
		}
	}
	h.T.Cleanup(func() {
		_ = session.Close()
		assert.NotContains(h.T, u.Heard.String(), h.Base, "a path of the host was told")
	})
	return u
}

// Soon returns a context that ends after patience.
func (h *Host) Soon() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	h.T.Cleanup(cancel)
	return ctx
}

// List returns the tools that may be called, by name.
func (u *User) List() map[string]*mcp.Tool {
	u.T.Helper()
	all := map[string]*mcp.Tool{}
	for tool, err := range u.Session.Tools(u.Soon(), nil) {
		require.NoError(u.T, err)
		all[tool.Name] = tool
	}
	return all
}

// Send calls a tool and returns the whole result.
func (u *User) Send(ctx context.Context, tool string, a args) (*mcp.CallToolResult, error) {
	if a == nil {
		a = args{}
	}
	return u.Session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: a})
}

// Begin calls a tool and does not wait. The channel receives the error, or nil.
func (u *User) Begin(ctx context.Context, tool string, a args) chan error {
	ended := make(chan error, 1)
	go func() {
		r, err := u.Send(ctx, tool, a)
		if err == nil && r.IsError {
			err = errors.New(Said(r))
		}
		ended <- err
	}()
	return ended
}

// Call calls a tool, which must succeed, and returns its structured result.
func (u *User) Call(tool string, a args) map[string]any {
	u.T.Helper()
	r, err := u.Send(u.Soon(), tool, a)
	require.NoError(u.T, err)
	require.False(u.T, r.IsError, "%s %v: %s", tool, a, Said(r))
	out, _ := r.StructuredContent.(map[string]any)
	return out
}

// Text calls a tool, which must succeed, and returns the text of its result.
func (u *User) Text(tool string, a args) string {
	u.T.Helper()
	r, err := u.Send(u.Soon(), tool, a)
	require.NoError(u.T, err)
	require.False(u.T, r.IsError, "%s %v: %s", tool, a, Said(r))
	return Said(r)
}

// Bash runs a command, which must end with status 0, and returns its standard output.
func (u *User) Bash(command string) string {
	u.T.Helper()
	out := u.Call("bash", args{"command": command})
	require.EqualValues(u.T, 0, out["exit_code"], "%s: %v", command, out)
	return strings.TrimSpace(out["stdout"].(string))
}

// Fails calls a tool, which must fail, and returns the error.
func (u *User) Fails(tool string, a args) tools.Error {
	u.T.Helper()
	r, err := u.Send(u.Soon(), tool, a)
	require.NoError(u.T, err)
	require.True(u.T, r.IsError, "%s %v: %s", tool, a, Said(r))
	var e tools.Error
	require.NoError(u.T, json.Unmarshal([]byte(Said(r)), &e), Said(r))
	require.NotEmpty(u.T, e.Code)
	return e
}

// Waits calls a tool that must be approved, and returns the approval's id.
func (u *User) Waits(tool string, a args) string {
	u.T.Helper()
	e := u.Fails(tool, a)
	require.Equal(u.T, tools.ApprovalRequired, e.Code, "%+v", e)
	require.NotEmpty(u.T, e.ApprovalID)
	return e.ApprovalID
}

// Said returns the text of a result.
func Said(r *mcp.CallToolResult) string {
	var all []string
	for _, c := range r.Content {
		if text, ok := c.(*mcp.TextContent); ok && text.Meta[names.Effects] == nil {
			all = append(all, text.Text)
		}
	}
	return strings.Join(all, "\n")
}
