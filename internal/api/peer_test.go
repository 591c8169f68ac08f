package api

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestHungUp: a peer that has written and closed is gone, before and after its text is read; one that has only ended its writing
// is not.
func TestHungUp(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	defer l.Close()
	dial, err := net.Dial("unix", l.Addr().String())
	require.NoError(t, err)
	conn, err := l.Accept()
	require.NoError(t, err)
	defer conn.Close()
	_, err = dial.Write([]byte("hello"))
	require.NoError(t, err)
	assert.False(t, HungUp(conn))
	require.NoError(t, dial.(*net.UnixConn).CloseWrite())
	assert.False(t, HungUp(conn))
	require.NoError(t, dial.Close())
	assert.True(t, HungUp(conn))
	n, err := conn.Read(make([]byte, 8))
	assert.NoError(t, err)
	assert.Equal(t, 5, n)
	assert.True(t, HungUp(conn))
}
