package loopback

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSockets: the ports at which a namespace listens on loopback, whose they are, and the number of refused connections.
func TestSockets(t *testing.T) {
	pid := os.Getpid()
	for _, at := range []string{"127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			continue // no IPv6
		}
		port := l.Addr().(*net.TCPAddr).AddrPort().Port()
		assert.Contains(t, Listening(pid, 0), port, at)
		n, err := socketsIn(pid)
		require.NoError(t, err)
		assert.Positive(t, n, at)
		assert.Empty(t, Listening(pid, n+100), "the caller knows all of them") // other tests of this host open some meanwhile
		assert.True(t, Own(port), at)
		l.Close()
		assert.False(t, Own(port), at)
		before := RefusedIn(pid)
		_, err = net.Dial("tcp", net.JoinHostPort("127.0.0.1", "1"))
		require.Error(t, err)
		assert.Greater(t, RefusedIn(pid), before)
	}
	assert.Empty(t, Listening(-1, 0))
	assert.Zero(t, RefusedIn(-1))
	for text, want := range map[string]string{
		"0100007F:0BB8": "127.0.0.1:3000", "00000000000000000000000001000000:0BB8": "[::1]:3000", "00000000:0016": "0.0.0.0:22",
	} {
		at, ok := parseAddress(text)
		assert.True(t, ok)
		assert.Equal(t, netip.MustParseAddrPort(want), at)
	}
	for _, bad := range []string{"", "0100007F", "0100007F:", "01:1", "0100007F:FFFFF", "zz00007F:1"} {
		_, ok := parseAddress(bad)
		assert.False(t, ok, bad)
	}
}
