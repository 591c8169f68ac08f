package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/agenttest"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools"
)

func (f *fixture) run(ctx context.Context, server, tool, text string) (string, error) {
	args, _ := json.Marshal(said{text})
	r, err := f.call(ctx, server, tool, args, nil, nil)
	var all strings.Builder
	for _, c := range r.Content {
		all.WriteString(c.Text)
	}
	return all.String(), err
}

var codeIs = agenttest.CodeIs

func TestListAndCall(t *testing.T) {
	f := start(t, "good", "noisy", "slow")
	names := f.names(t)
	assert.Contains(t, names, "mcp:good:echo")
	assert.Contains(t, names, "mcp:noisy:echo")
	assert.Contains(t, names, "mcp:slow:echo")
	assert.IsIncreasing(t, names)
	for _, server := range []string{"good", "noisy", "slow"} {
		text, err := f.run(t.Context(), server, "echo", "hé")
		require.NoError(t, err)
		assert.Equal(t, "hé", text)
	}
	text, err := f.run(t.Context(), "good", "cwd", "")
	require.NoError(t, err)
	assert.Equal(t, "/", text)
	f.names(t)
	assert.Equal(t, 3, f.sandboxes.started(), "one process a server")
}

func TestContentOfAllKinds(t *testing.T) {
	f := start(t, "good")
	r, err := f.call(t.Context(), "good", "all", json.RawMessage(`{"text":""}`), nil, nil)
	require.NoError(t, err)
	assert.Equal(t, []tools.Content{
		{Text: "text"},
		{Data: []byte("img"), MIME: "image/png"},
		{Data: []byte("aud"), MIME: "application/octet-stream"},
		{Text: "link file:///x"},
		{Text: "inside"},
		{Data: []byte("blob"), MIME: "application/pdf"},
	}, r.Content)
}

func TestServerGetsNoMoreThanTheWorkspace(t *testing.T) {
	f := start(t, "good")
	text, err := f.run(t.Context(), "good", "roots", "")
	require.NoError(t, err)
	assert.Equal(t, "1file:///workspacetrue true", text)
}

func TestErrorsOfCalls(t *testing.T) {
	f := start(t, "good", "broken")
	_, err := f.run(t.Context(), "good", "fail", "")
	assert.Contains(t, codeIs(t, tools.Internal, err).Message, "no such row")
	_, err = f.run(t.Context(), "good", "absent", "")
	codeIs(t, tools.Invalid, err)
	_, err = f.run(t.Context(), "unknown", "echo", "")
	codeIs(t, tools.NotFound, err)
	_, err = f.call(t.Context(), "good", "echo", json.RawMessage(`{"text":7}`), nil, nil)
	require.Error(t, err)
	_, err = f.run(t.Context(), "broken", "echo", "")
	assert.Equal(t, `MCP server "broken" does not start`, codeIs(t, tools.Unavailable, err).Message, "and nothing of its command")
}

func TestHugeResults(t *testing.T) {
	need.Long(t, "moves many bytes")
	t.Parallel()
	f := start(t, "good")
	text, err := f.run(t.Context(), "good", "huge", "6000000")
	require.NoError(t, err)
	assert.True(t, strings.HasSuffix(text, "[cut: the result has more than 4194304 bytes]"))
	assert.Less(t, len(text), maxContent+200)
	_, err = f.run(t.Context(), "good", "huge", "18000000")
	assert.Contains(t, codeIs(t, tools.TooLarge, err).Message, "16 MiB")
	text, err = f.run(t.Context(), "good", "echo", "again")
	require.NoError(t, err)
	assert.Equal(t, "again", text)
}

func TestServerThatCannotStart(t *testing.T) {
	f := start(t, "broken", "good")
	list, errs := f.Tools(t.Context())
	require.Len(t, errs, 1)
	assert.NotEmpty(t, list, "the others are there")
	assert.ErrorContains(t, errs[0], `"broken"`)
	assert.ErrorContains(t, errs[0], "no database at ***")
	f.sandboxes.fail = errors.New("no such program")
	f.allow("other")
	_, errs = f.Tools(t.Context())
	require.Len(t, errs, 1)
	assert.ErrorContains(t, errs[0], "no such program")
}

func TestServerThatNeverAnswers(t *testing.T) {
	f := start(t, "silent")
	f.timeout = 300 * time.Millisecond
	_, errs := f.Tools(t.Context())
	require.Len(t, errs, 1)
	assert.ErrorContains(t, errs[0], `start MCP server "silent": no answer within 300ms`)
}

func TestServerThatAsksAndDoesNotRead(t *testing.T) {
	t.Parallel()
	f := start(t, "flood")
	f.timeout = time.Second
	_, errs := f.Tools(t.Context())
	require.Len(t, errs, 1)
	assert.ErrorContains(t, errs[0], "no answer within")
}

func TestServerOfTheNewestProtocol(t *testing.T) {
	f := start(t, "modern")
	_, errs := f.Tools(t.Context())
	require.Len(t, errs, 1)
	assert.ErrorContains(t, errs[0], "asked to discover")
	assert.Equal(t, 2, f.sandboxes.started())
}

func TestDeathAndRestart(t *testing.T) {
	f := start(t, "good")
	f.pause = time.Hour
	_, err := f.run(t.Context(), "good", "die", "")
	e := codeIs(t, tools.Internal, err)
	assert.Equal(t, `MCP server "good" ended: its output ended: fatal: [31mout of cheese`, e.Message)
	text, err := f.run(t.Context(), "good", "echo", "back")
	require.NoError(t, err, "the first death costs no pause")
	assert.Equal(t, "back", text)

	f.sandboxes.kill()
	require.Eventually(t, func() bool {
		_, err = f.run(t.Context(), "good", "echo", "")
		return err != nil && strings.Contains(err.Error(), "may be started again in")
	}, 20*time.Second, 10*time.Millisecond)
	assert.Equal(t, 2, f.sandboxes.started())
}

func TestPauseEnds(t *testing.T) {
	f := start(t, "good")
	f.pause = 50 * time.Millisecond
	for range 3 {
		require.Eventually(t, func() bool {
			_, err := f.run(t.Context(), "good", "echo", "")
			return err == nil
		}, 20*time.Second, 10*time.Millisecond)
		_, err := f.run(t.Context(), "good", "die", "")
		require.Error(t, err)
	}
}

func TestPauseGrows(t *testing.T) {
	s := &server{pause: time.Second}
	for i, want := range []time.Duration{0, 1, 2, 4, 8, 16, 32, 60, 60} {
		s.failed(errors.New("x"))
		got := max(0, time.Until(s.next))
		assert.InDelta(t, want*time.Second, got, float64(time.Second/2), "failure %d", i+1)
	}
}

func TestCallerDoesNotWaitForASlowStart(t *testing.T) {
	f := start(t, "slow", "good")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, errs := f.Tools(ctx)
	require.NotEmpty(t, errs)
	assert.ErrorContains(t, errors.Join(errs...), `"slow" is still starting`)
	require.Eventually(t, func() bool { return f.changes.Load() > 0 }, 20*time.Second, 10*time.Millisecond)
	assert.Contains(t, f.names(t), "mcp:slow:echo")
	assert.Equal(t, 2, f.sandboxes.started())
}

func TestListChanges(t *testing.T) {
	f := start(t, "good")
	assert.NotContains(t, f.names(t), "mcp:good:new")
	before := f.changes.Load()
	_, err := f.run(t.Context(), "good", "grow", "")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return f.changes.Load() > before }, 20*time.Second, 10*time.Millisecond)
	assert.Contains(t, f.names(t), "mcp:good:new")
}

// TestLastChangeIsSeen requires that OnChange sees the last of many changes.
func TestLastChangeIsSeen(t *testing.T) {
	need.Long(t, "waits until a server may be listed again")
	t.Parallel()
	f := start(t, "good")
	f.rest = 300 * time.Millisecond
	var seen atomic.Bool
	f.OnChange = func() { seen.Store(slices.Contains(f.names(t), "mcp:good:new")) }
	for _, tool := range []string{"blast", "grow"} {
		_, err := f.run(t.Context(), "good", tool, "")
		require.NoError(t, err)
	}
	require.Eventually(t, seen.Load, 20*time.Second, 10*time.Millisecond)
}

func TestFloodOfChanges(t *testing.T) {
	need.Once(t)
	need.Long(t, "waits until a server may be listed again")
	t.Parallel()
	f := start(t, "good")
	f.rest = 300 * time.Millisecond
	release := make(chan struct{})
	f.OnChange = func() { f.changes.Add(1); <-release }
	text, err := f.run(t.Context(), "good", "blast", "")
	require.NoError(t, err)
	assert.Equal(t, "blasted", text)
	require.Eventually(t, func() bool { return f.changes.Load() == 1 }, 20*time.Second, 10*time.Millisecond,
		"a slow OnChange does not block the connection")
	close(release)
	_, err = f.run(t.Context(), "good", "blast", "") // the first may have been one change: all came before it was handled
	require.NoError(t, err)
	require.Eventually(t, func() bool { return f.changes.Load() >= 2 }, 20*time.Second, 10*time.Millisecond)
	assert.Less(t, f.changes.Load(), int32(1000))
}

func TestCancelReachesTheServer(t *testing.T) {
	f := start(t, "good")
	mark := filepath.Join(t.TempDir(), "mark")
	says := func(want string) func() bool {
		return func() bool { b, _ := os.ReadFile(mark); return string(b) == want }
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { _, err := f.run(ctx, "good", "wait", mark); done <- err }()
	require.Eventually(t, says("waiting"), 20*time.Second, 5*time.Millisecond)
	cancel()
	assert.ErrorIs(t, <-done, context.Canceled)
	require.Eventually(t, says("cancelled"), 20*time.Second, 5*time.Millisecond)
	_, err := f.run(t.Context(), "good", "echo", "")
	assert.NoError(t, err, "the connection lives on")
}

// TestCallTimeout requires that a call without a response times out, that the server
// sees the cancellation, and that it answers the next call.
func TestCallTimeout(t *testing.T) {
	f := start(t, "good", "deaf")
	specs := *f.allowed.Load()
	for _, name := range []string{"good", "deaf"} {
		spec := specs[name]
		spec.Timeout = 300 * time.Millisecond
		specs[name] = spec
	}
	mark := filepath.Join(t.TempDir(), "mark")
	for server, tool := range map[string]string{"good": "wait", "deaf": "x"} {
		_, err := f.run(t.Context(), server, tool, mark)
		e := codeIs(t, tools.Unavailable, err)
		assert.Contains(t, e.Message, fmt.Sprintf("MCP server %q did not answer within 300ms", server))
		assert.NotEmpty(t, e.Hint)
	}
	require.Eventually(t, func() bool { b, _ := os.ReadFile(mark); return string(b) == "cancelled" }, 20*time.Second, 5*time.Millisecond)
	text, err := f.run(t.Context(), "good", "echo", "still here")
	require.NoError(t, err)
	assert.Equal(t, "still here", text)
	assert.Equal(t, 2, f.sandboxes.started(), "the connections live on")
	assert.Equal(t, time.Minute, callTimeout, "as documented")
}

func TestReload(t *testing.T) {
	f := start(t, "good", "noisy")
	f.names(t)
	f.allow("noisy")
	_, err := f.run(t.Context(), "good", "echo", "")
	codeIs(t, tools.NotFound, err)
	assert.NotContains(t, f.names(t), "mcp:good:echo")
	f.stopping.Wait()
	require.Eventually(t, func() bool { return f.sandboxes.gone.Load() == 1 },
		20*time.Second, 10*time.Millisecond, "the process is gone")

	f.allow("noisy", "good")
	specs := *f.allowed.Load()
	other := specs["noisy"]
	other.Args = []string{"-changed"}
	specs["noisy"] = other
	assert.Contains(t, f.names(t), "mcp:noisy:echo")
	assert.Equal(t, 4, f.sandboxes.started(), "another command is another server")
}

func TestClose(t *testing.T) {
	f := start(t, "good", "silent")
	go f.Tools(t.Context())
	done := make(chan error)
	require.Eventually(t, func() bool { return f.sandboxes.started() == 2 }, 20*time.Second, time.Millisecond)
	go func() { _, err := f.run(t.Context(), "good", "stall", ""); done <- err }()
	time.Sleep(100 * time.Millisecond) // the call may or may not have reached the server
	begin := time.Now()
	require.NoError(t, f.Close())
	assert.Less(t, time.Since(begin), 10*time.Second)
	assert.Error(t, <-done)
	_, errs := f.Tools(t.Context())
	require.Len(t, errs, 1)
	assert.ErrorIs(t, errs[0], os.ErrClosed)
	require.NoError(t, f.Close())
}
