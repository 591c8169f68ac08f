package activity

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/need"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

func TestMain(m *testing.M) {
	child.Play(map[string]func() int{child.Init: pid1.Main, child.Files: nil})
	os.Exit(m.Run())
}

// given returns the scope state of an environment, for an instance.
func given(t *testing.T, text, instance string) scoped.Scoped {
	t.Helper()
	env, bad := scoped.Parse([]byte(text))
	require.Nil(t, bad)
	e := scoped.Envelope{}
	if instance != "" {
		e.Instance = &instance
	}
	s, bad := scoped.Select(env, scoped.Spec{Names: []string{"state"}, Fixed: true}, nil, e)
	require.Nil(t, bad)
	return s
}

const state = `[{"type":"state","userId":"u1"},{"type":"input","secret":1},{"type":"state","_instance":"②","secret":2}]`

func TestRun(t *testing.T) {
	if err := sandbox.Check(t.Context(), sandbox.Config{}); err != nil {
		need.Skip(t, "no sandbox here: ", err)
	}
	host, err := sandbox.Open(sandbox.Config{})
	require.NoError(t, err)
	defer host.Close()
	id := uint32(1000)
	if os.Geteuid() != 0 {
		id = uint32(os.Geteuid())
	}
	session, err := host.Start(context.Background(), sandbox.Spec{Agent: "tester", UID: id, GID: id})
	require.NoError(t, err)
	run := func(ctx context.Context, script, instance string) (tools.Result, error) {
		return Run(ctx, session, sandbox.Command{Argv: []string{"sh", "-c", script}}, "logEvent", json.RawMessage(`{"eventName":"login"}`), given(t, state, instance))
	}
	r, err := run(t.Context(), "cat", "")
	require.NoError(t, err)
	want := `{"call":{"_tool":"logEvent","_scopes":["state"],"eventName":"login"},"context":{"state":[{"type":"state","userId":"u1"}]},"scopes":{"state":{"userId":"u1"}}}`
	assert.Equal(t, want, string(r.Structured))
	assert.Equal(t, want+"\n", r.Content[0].Text)
	r, err = run(t.Context(), "cat", "②")
	require.NoError(t, err)
	assert.Contains(t, string(r.Structured), `"_instance":"②","eventName":"login"}`)
	assert.Contains(t, string(r.Structured), `"secret":2`)

	r, err = run(t.Context(), "echo '[1]'", "")
	require.NoError(t, err)
	assert.Nil(t, r.Structured)
	assert.Equal(t, "[1]\n", r.Content[0].Text)

	for script, want := range map[string]struct {
		code tools.Code
		text string
	}{
		"echo out; echo why >&2; exit 3": {tools.Internal, "logEvent ended with status 3: why"},
		"kill -9 $$":                     {tools.Internal, "logEvent ended by SIGKILL"},
		"head -c 2000000 /dev/zero":      {tools.TooLarge, "logEvent wrote more than 1048576 bytes"},
	} {
		_, err := run(t.Context(), script, "")
		e, ok := errors.AsType[*tools.Error](err)
		require.True(t, ok, "%v", err)
		assert.Equal(t, want.code, e.Code)
		assert.Equal(t, want.text, e.Message)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go cancel()
	_, err = run(ctx, "sleep 1031", "")
	assert.ErrorIs(t, err, context.Canceled)
}
