package loopback

import (
	"context"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// TestUser: a connection is of the user whose process made it, while that process has it. What the kernel calls root's because
// nobody has it is refused.
func TestUser(t *testing.T) {
	for network, address := range map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0"} {
		l, err := net.Listen(network, address)
		if err != nil {
			need.Skip(t, "this host has no "+address)
		}
		conns := NewConns(l, bounds)
		t.Cleanup(func() { conns.Close() })
		pair := func() (theirs net.Conn, ctx context.Context) {
			theirs, err := net.Dial("tcp", l.Addr().String())
			require.NoError(t, err)
			t.Cleanup(func() { theirs.Close() })
			ours, err := conns.Accept()
			require.NoError(t, err)
			t.Cleanup(func() { ours.Close() })
			return theirs, ConnContext(t.Context(), ours)
		}
		_, ctx := pair()
		uid, err := User(ctx)
		require.NoError(t, err)
		assert.EqualValues(t, os.Geteuid(), uid)

		theirs, ctx := pair()
		_, err = theirs.Write([]byte("GET"))
		require.NoError(t, err)
		theirs.Close()
		_, err = User(ctx)
		assert.ErrorContains(t, err, "sock_diag: ", "its process has closed it")
		_, again := User(ctx)
		assert.Equal(t, err, again)
	}
	_, err := User(t.Context())
	assert.Error(t, err)
}
