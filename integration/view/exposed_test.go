package view

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestExposed: a sandbox has what expose names, but for what the agent's user cannot
// reach, which stops nothing. Links of the view may lead there, and nowhere beside it.
func TestExposed(t *testing.T) {
	shown, err := os.MkdirTemp("/srv", harness.TempPrefix) // links to /tmp are allowed in any case
	require.NoError(t, err)
	defer os.RemoveAll(shown)
	require.NoError(t, os.Chmod(shown, 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(shown, "open"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(shown, "closed", "below"), 0o755))
	require.NoError(t, os.Chmod(filepath.Join(shown, "closed"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(shown, "open", "file"), []byte("text"), 0o644))
	h := harness.LayOut(t, map[string]string{"a": "user: 1234"})
	require.NoError(t, os.Chown(h.Scope("a"), 1234, 1234))
	h.Put("scopefs.yaml", "sandbox: {expose: ["+filepath.Join(shown, "open")+", "+filepath.Join(shown, "closed", "below")+"]}")
	require.NoError(t, os.Symlink(filepath.Join(shown, "closed"), h.Scope("a", "beside")))
	h.Start()
	out := h.Must("run", "a", "--", "sh", "-c", "ln -s "+filepath.Join(shown, "open", "file")+" link && cat link; ls "+shown+"; cat beside 2>&1 || true")
	assert.Equal(t, "textopen\ncat: beside: Permission denied\n", out)
	assert.Contains(t, h.Must("check", "link", "--agent", "a"), "allow")
	h.Stop()
	assert.Contains(t, h.Log.String(), "left out, the agent's user cannot reach it")
}

// TestExposedSockets: a program connects to a socket of the host below an exposed
// directory only if the operator has said so.
func TestExposedSockets(t *testing.T) {
	shown, err := os.MkdirTemp("/srv", harness.TempPrefix)
	require.NoError(t, err)
	defer os.RemoveAll(shown)
	require.NoError(t, os.Chmod(shown, 0o755))
	socket := filepath.Join(shown, "socket")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer l.Close()
	require.NoError(t, os.Chmod(socket, 0o777))
	h := harness.LayOut(t, map[string]string{"a": "user: 1234"})
	require.NoError(t, os.Chown(h.Scope("a"), 1234, 1234))
	connect := []string{"run", "a", "--", "/usr/bin/python3", "-c", "import socket; print(socket.socket(socket.AF_UNIX).connect_ex('" + socket + "'))"}
	h.Put("scopefs.yaml", "sandbox: {expose: ["+shown+"]}")
	h.Start()
	assert.Equal(t, "111\n", h.Must(connect...), "ECONNREFUSED")
	h.Stop()
	h.Put("scopefs.yaml", "sandbox: {expose: [{path: "+shown+", sockets: true}]}")
	h.Start()
	assert.Equal(t, "0\n", h.Must(connect...))
}
