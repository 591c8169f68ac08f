package loopback

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// TestListen: a console's link for a device has the name localhost, which browsers take for ::1 first. No other process gets
// that port of it: it would get the link, and be the device.
func TestListen(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		need.Skip(t, "this host has no ::1")
	} else {
		l.Close()
	}
	for from, to := range map[string]string{"127.0.0.1": "::1", "::1": "127.0.0.1"} {
		l, at, err := Listen(net.JoinHostPort(from, "0"))
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		port := strconv.Itoa(int(at.Port()))
		_, err = net.Listen("tcp", net.JoinHostPort(to, port))
		assert.Error(t, err, "the port of %s", to)
		_, err = net.Dial("tcp", net.JoinHostPort(to, port))
		assert.ErrorContains(t, err, "refused", "a browser goes on to %s", from)

		other, err := net.Listen("tcp", net.JoinHostPort(to, "0"))
		require.NoError(t, err)
		_, taken, _ := net.SplitHostPort(other.Addr().String())
		_, _, err = Listen(net.JoinHostPort(from, taken))
		assert.Error(t, err, "another process has the port already")
		other.Close()
		require.NoError(t, l.Close())
		again, _, err := Listen(net.JoinHostPort(from, port))
		require.NoError(t, err, "at its next start")
		require.NoError(t, again.Close())
	}
}
