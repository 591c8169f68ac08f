package mcp

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/mcp/names"
)

// bench is a Face with a client and a recorder.
type bench struct {
	face   *Face
	set    *tools.Set
	rules  atomic.Pointer[agents.Agent]
	client *mcp.ClientSession
	conn   net.Conn // the client's end

	mu      sync.Mutex
	events  []audit.Event
	changed chan struct{}
	cancel  chan struct{} // closed when a call of wait was cancelled
}

func agent(t *testing.T, front string) *agents.Agent {
	t.Helper()
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
	text := "---\nname: a\ndescription: test\n" + front + "\n---\n"
	require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", "a.md"), []byte(text), 0o644))
	all, errs := agents.Load(base, agents.Host{Tools: catalog.Tools{{Name: "bash"}, {Name: "read_file"}, {Name: "write_file", Writes: true}, {Name: "ask_user"}}})
	require.Empty(t, errs)
	return all.Agents["a"]
}

type in struct {
	Path string `json:"path"`
}

type out struct {
	Said string `json:"said"`
}

func newBench(t *testing.T, front string, opt *mcp.ClientOptions) *bench {
	t.Helper()
	b := &bench{changed: make(chan struct{}, 10), cancel: make(chan struct{})}
	b.rules.Store(agent(t, front))
	hints := tools.Hints{Title: "T", Writes: true}
	read, err := tools.New("read_file", "reads", tools.Hints{Title: "Read"}, func(_ context.Context, _ tools.Env, i in) (out, error) {
		if i.Path == "missing" {
			return out{}, &tools.Error{Code: tools.NotFound, Message: "no such file or directory", Path: i.Path}
		}
		return out{"text of " + i.Path}, nil
	})
	require.NoError(t, err)
	write, err := tools.New("write_file", "writes", hints, func(context.Context, tools.Env, in) (out, error) { return out{}, nil })
	require.NoError(t, err)
	wait, err := tools.New("bash", "waits", tools.Hints{Acts: true}, func(ctx context.Context, env tools.Env, i in) (out, error) {
		report := time.NewTicker(time.Millisecond)
		defer report.Stop()
		for end := time.After(2500 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				if b.cancel != nil {
					close(b.cancel)
				}
				return out{}, ctx.Err()
			case <-report.C:
				if env.Progress != nil {
					env.Progress("half")
				}
			case <-end:
				return out{"waited"}, nil
			}
		}
	})
	require.NoError(t, err)
	ask, err := tools.New("ask_user", "asks", tools.Hints{}, func(ctx context.Context, env tools.Env, i in) (out, error) {
		if env.Ask == nil {
			return out{}, tools.Errorf(tools.Denied, "nobody is there")
		}
		a, err := env.Ask(ctx, tools.Question{Text: i.Path, Options: []string{"yes", "no"}})
		return out{a.Text}, err
	})
	require.NoError(t, err)
	b.set, err = tools.NewSet(tools.Gate{
		Agent: "a", Session: "s", Rates: &tools.Rates{},
		Rules: func() tools.Rules { return b.rules.Load().Grants },
		Record: func(_ context.Context, e audit.Event) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.events = append(b.events, e)
			return nil
		},
	}, read, write, wait, ask)
	require.NoError(t, err)
	b.face = New(b.set, Options{Version: "v1", Instructions: func() string { return "block " + b.rules.Load().Grants.Block() }})
	ours, theirs := net.Pipe()
	b.conn = theirs
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.face.Serve(ctx, ours) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-served:
			assert.NoError(t, err)
		case <-time.After(20 * time.Second):
			t.Error("Serve does not return")
		}
	})
	if opt == nil {
		opt = &mcp.ClientOptions{}
	}
	opt.ToolListChangedHandler = func(context.Context, *mcp.ToolListChangedRequest) { b.changed <- struct{}{} }
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "v1"}, opt)
	b.client, err = client.Connect(ctx, &mcp.IOTransport{Reader: theirs, Writer: theirs}, nil)
	require.NoError(t, err)
	return b
}

func (b *bench) names(t *testing.T) (names []string) {
	t.Helper()
	for tool, err := range b.client.Tools(context.Background(), nil) {
		require.NoError(t, err)
		names = append(names, tool.Name)
		require.NotNil(t, tool.Annotations)
		assert.Equal(t, tool.Annotations.ReadOnlyHint, tool.Annotations.DestructiveHint == nil)
		assert.NotNil(t, tool.Annotations.OpenWorldHint)
	}
	return names
}

func (b *bench) call(t *testing.T, name string, args any) *mcp.CallToolResult {
	t.Helper()
	r, err := b.client.CallTool(context.Background(), &mcp.CallToolParams{Name: name, Arguments: args})
	require.NoError(t, err)
	return r
}

func said(r *mcp.CallToolResult) string { return r.Content[0].(*mcp.TextContent).Text }

func TestCallAndErrors(t *testing.T) {
	b := newBench(t, "tools: [read_file]\nskills: []", nil)
	assert.Equal(t, []string{"read_file"}, b.names(t))
	assert.Contains(t, b.client.InitializeResult().Instructions, "<scope>")
	prompts, err := b.client.ListPrompts(context.Background(), nil)
	require.NoError(t, err)
	require.Len(t, prompts.Prompts, 1)
	prompt, err := b.client.GetPrompt(context.Background(), &mcp.GetPromptParams{Name: "agent"})
	require.NoError(t, err)
	require.Len(t, prompt.Messages, 1)
	assert.Equal(t, b.client.InitializeResult().Instructions, prompt.Messages[0].Content.(*mcp.TextContent).Text)
	r := b.call(t, "read_file", map[string]any{"path": "x"})
	assert.False(t, r.IsError)
	assert.Equal(t, map[string]any{"said": "text of x"}, r.StructuredContent)
	for name, args := range map[string]any{"read_file": map[string]any{"path": "missing"}, "write_file": map[string]any{"path": "x"}, "none": map[string]any{}} {
		r := b.call(t, name, args)
		require.True(t, r.IsError, name)
		var e tools.Error
		require.NoError(t, json.Unmarshal([]byte(said(r)), &e), said(r))
		assert.NotEmpty(t, e.Code)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	refused := 0
	for _, e := range b.events {
		if e.Verdict == audit.Deny {
			refused++
		}
	}
	assert.Equal(t, 2, refused, "calls of what is not listed are recorded")
}

// Results must be private, so that a proxy never serves one agent's list to another.
func TestNothingIsPublic(t *testing.T) {
	b := newBench(t, "tools: [read_file]", nil)
	list, err := b.client.ListTools(context.Background(), nil)
	require.NoError(t, err)
	assert.Equal(t, "private", list.CacheScope)
	assert.Zero(t, list.TTLMs)
}

func TestListChanges(t *testing.T) {
	b := newBench(t, "tools: [read_file]", nil)
	b.names(t)
	b.rules.Store(agent(t, "tools: [read_file, write_file]"))
	b.face.Refresh()
	select {
	case <-b.changed:
	case <-time.After(20 * time.Second):
		t.Fatal("the client is not told")
	}
	assert.Equal(t, []string{"read_file", "write_file"}, b.names(t))
	b.rules.Store(agent(t, "view: {access: read}"))
	assert.True(t, b.call(t, "write_file", map[string]any{"path": "x"}).IsError, "the current rules decide, whatever is listed")
	b.face.Refresh()
	<-b.changed
	assert.NotContains(t, b.names(t), "write_file")
}

func TestCancelEndsTheCall(t *testing.T) {
	b := newBench(t, "", nil)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := b.client.CallTool(ctx, &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"path": "x"}})
	assert.Error(t, err)
	select {
	case <-b.cancel:
	case <-time.After(20 * time.Second):
		t.Fatal("the tool runs on")
	}
}

func TestGoneClientEndsTheCall(t *testing.T) {
	b := newBench(t, "", nil)
	go func() {
		_, _ = b.client.CallTool(context.Background(), &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"path": "x"}})
	}()
	require.Eventually(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.events) > 0 }, 20*time.Second, time.Millisecond)
	b.conn.Close()
	select {
	case <-b.cancel:
	case <-time.After(20 * time.Second):
		t.Fatal("the tool runs on")
	}
}

func TestProgress(t *testing.T) {
	need.Long(t, "waits for reports of progress")
	told := make(chan float64, 5000)
	b := newBench(t, "", &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
		assert.Equal(t, "bash is running: half", r.Params.Message)
		told <- r.Params.Progress
	}})
	params := &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"path": "x"}}
	params.SetProgressToken("p")
	_, err := b.client.CallTool(context.Background(), params)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, len(told), 2)
	assert.Less(t, len(told), 100, "of the 2,500 reports of the tool")
	assert.Less(t, <-told, <-told)
}

func TestAskUser(t *testing.T) {
	for _, version := range []string{"2025-06-18", ""} {
		b := newBench(t, "", &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			assert.Equal(t, "sure?", r.Params.Message)
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"answer": "yes"}}, nil
		}})
		_ = version
		r := b.call(t, "ask_user", map[string]any{"path": "sure?"})
		assert.Equal(t, map[string]any{"said": "yes"}, r.StructuredContent)
	}
	b := newBench(t, "", nil)
	assert.True(t, b.call(t, "ask_user", map[string]any{"path": "sure?"}).IsError, "without elicitation there is no user")
}

func TestNames(t *testing.T) {
	for name, wire := range map[string]string{"read_file": "read_file", "mcp:s:t": "mcp__s__t", "mcp:s:a__b": "mcp__s__a__b"} {
		assert.Equal(t, wire, names.OfTool(name))
		assert.Equal(t, name, names.Tool(wire))
	}
}

// A second initialize fails, and the session goes on.
func TestInitializeTwice(t *testing.T) {
	b := newBench(t, "", nil)
	again := `{"jsonrpc":"2.0","id":"again","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
	_, err := b.conn.Write([]byte(again + "\n" + again + "\n"))
	require.NoError(t, err)
	assert.NotEmpty(t, b.names(t))
}

// TestNoInstructions serves a Face without instructions.
func TestNoInstructions(t *testing.T) {
	set, err := tools.NewSet(tools.Gate{Agent: "a", Session: "s", Rates: &tools.Rates{}, Rules: func() tools.Rules { return nil },
		Record: func(context.Context, audit.Event) error { return nil }})
	require.NoError(t, err)
	f := New(set, Options{})
	ours, theirs := net.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx, ours) }()
	client, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "v1"}, nil).Connect(ctx, &mcp.IOTransport{Reader: theirs, Writer: theirs}, nil)
	require.NoError(t, err)
	assert.Empty(t, client.InitializeResult().Instructions)
	cancel()
	require.NoError(t, <-served)
}
