package loopback

import (
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestListenersOfMany reads no table of connections, which an agent can make long: the kernel walks through all of the host for it.
func TestListenersOfMany(t *testing.T) {
	line := func(port, state string) string {
		return "   0: 0100007F:" + port + " 00000000:0000 " + state + " 00000000:00000000 00:00000000 00000000     0        0 1613 1 0 100 0 0 10 0\n"
	}
	table := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" + line("07E8", "0A") + line("A4A1", "0A") + line("0016", "01")
	rest := strings.NewReader(strings.Repeat(line("0016", "01"), 1000))
	all := listeners(io.MultiReader(strings.NewReader(table), rest))
	assert.Equal(t, []socket{{netip.MustParseAddrPort("127.0.0.1:2024"), "1613"}, {netip.MustParseAddrPort("127.0.0.1:42145"), "1613"}}, all)
	assert.EqualValues(t, rest.Size(), rest.Len(), "is not read")
}

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
