package upstream

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// TestInSandbox runs a server in a real sandbox.
func TestInSandbox(t *testing.T) {
	if err := sandbox.Check(context.Background(), sandbox.Config{}); err != nil {
		need.Skip(t, "no sandbox here: ", err)
	}
	host, err := sandbox.Open(sandbox.Config{})
	require.NoError(t, err)
	defer host.Close()
	dir, err := os.MkdirTemp("", "view")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	view := os.NewFile(uintptr(fd), dir)
	defer view.Close()
	id := uint32(1000)
	if os.Geteuid() != 0 {
		id = uint32(os.Geteuid())
	}
	session, err := host.Start(context.Background(), sandbox.Spec{Agent: "tester", UID: id, GID: id, View: view})
	require.NoError(t, err)
	f := &fixture{}
	f.Upstream = New(inside{session}, func() map[string]Spec {
		return map[string]Spec{
			"inside": {Command: sandbox.FileWorker, Env: map[string]string{role: "good"}},
			"absent": {Command: "no-such-program"},
			"lost":   {Command: "sh", Cwd: "nowhere"},
		}
	})
	list, errs := f.Tools(t.Context())
	require.Len(t, errs, 2)
	all := errors.Join(errs...)
	assert.ErrorContains(t, all, `start MCP server "absent": exec "no-such-program" in sandbox of "tester": no such file or directory`)
	assert.ErrorContains(t, all, `start MCP server "lost": exec "sh" in "nowhere" in sandbox of "tester": no such file or directory`)
	assert.NotEmpty(t, list)
	text, err := f.run(t.Context(), "inside", "cwd", "")
	require.NoError(t, err)
	assert.Equal(t, sandbox.Workspace, text)
	_, err = f.run(t.Context(), "inside", "die", "")
	assert.ErrorContains(t, err, "out of cheese")
	_, err = f.run(t.Context(), "inside", "echo", "")
	require.NoError(t, err)
	require.NoError(t, session.Close())
	_, err = f.run(t.Context(), "inside", "echo", "")
	assert.Error(t, err)
	require.NoError(t, f.Close())
}

// inside runs all servers in one session.
type inside struct{ *sandbox.Session }

func (p inside) Exec(ctx context.Context, _ string, c sandbox.Command) (*sandbox.Process, error) {
	return p.Session.Exec(ctx, c)
}
