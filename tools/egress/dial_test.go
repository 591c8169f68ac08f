package egress

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
)

func TestPublic(t *testing.T) {
	for text, want := range map[string]bool{
		"1.1.1.1": true, "8.8.8.8": true, "2606:4700::1111": true, "172.32.0.1": true, "100.128.0.1": true,
		"0.0.0.0": false, "10.1.2.3": false, "127.0.0.1": false, "127.255.255.254": false, "169.254.169.254": false,
		"172.16.0.1": false, "172.31.255.255": false, "192.168.1.1": false, "100.64.0.1": false, "198.18.0.1": false,
		"192.0.2.1": false, "224.0.0.1": false, "255.255.255.255": false, "240.0.0.1": false,
		"::1": false, "::": false, "::7f00:1": false, "::ffff:10.0.0.1": false, "::ffff:1.1.1.1": true, "64:ff9b::a00:1": false,
		"2002:7f00:1::": false, "2001::1": false, "2001:db8::1": false, "fc00::1": false, "fd12::1": false, "fe80::1": false, "ff02::1": false,
	} {
		assert.Equal(t, want, Public(netip.MustParseAddr(text)), text)
	}
}

// TestDialerRefuses: nothing of the inside is reached, by whatever spelling.
func TestDialerRefuses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	names := map[string][]string{
		"inside.example": {"127.0.0.1"}, "mixed.example": {"1.1.1.1", "127.0.0.1"}, "mapped.example": {"::ffff:127.0.0.1"}, "none.example": {},
	}
	d := &Dialer{Lookup: func(_ context.Context, host string) (all []netip.Addr, err error) {
		for _, text := range names[host] {
			all = append(all, netip.MustParseAddr(text))
		}
		return all, nil
	}}
	for _, host := range []string{"127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "fe80::1%lo", "inside.example", "mixed.example", "mapped.example", "none.example", "2130706433", "0x7f.1", "127.1"} {
		_, err := d.DialContext(t.Context(), "tcp", net.JoinHostPort(host, port))
		assert.ErrorIs(t, err, ErrAddress, host)
	}
	_, err = d.DialContext(t.Context(), "unix", "/run/x")
	assert.ErrorIs(t, err, ErrAddress)

	d.Pinned = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	conn, err := d.DialContext(t.Context(), "tcp", net.JoinHostPort("inside.example", port))
	require.NoError(t, err)
	conn.Close()
	_, err = d.DialContext(t.Context(), "tcp", net.JoinHostPort("127.0.0.2", port))
	assert.ErrorIs(t, err, ErrAddress, "only what is pinned")
}

// TestDialerResolvesOnce: a name that answers differently the second time is
// dialled at the address that was checked.
func TestDialerResolvesOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	asked := 0
	d := &Dialer{Pinned: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Lookup: func(context.Context, string) ([]netip.Addr, error) {
		asked++
		if asked == 1 {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		}
		return []netip.Addr{netip.MustParseAddr("169.254.169.254")}, nil
	}}
	conn, err := d.DialContext(t.Context(), "tcp", "rebind.example:"+port)
	require.NoError(t, err)
	assert.Equal(t, l.Addr().String(), conn.RemoteAddr().String())
	conn.Close()
	assert.Equal(t, 1, asked)
}

// TestDialerOwnAddress: a public address of this host is of the inside, too. The test runs
// itself in a network of its own, which has one.
func TestDialerOwnAddress(t *testing.T) {
	const own = "1.2.3.4"
	if os.Getenv("SCOPEFS_TEST_OWN_NETWORK") == "" {
		need.Root(t, "a network of its own")
		self, err := os.Executable()
		require.NoError(t, err)
		cmd := exec.Command(self, "-test.run", "^TestDialerOwnAddress$")
		cmd.Env = append(os.Environ(), "SCOPEFS_TEST_OWN_NETWORK=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, string(out))
		return
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	require.NoError(t, err)
	require.NoError(t, r.SetInet4Addr(netip.MustParseAddr(own).AsSlice()))
	require.NoError(t, unix.IoctlIfreq(fd, unix.SIOCSIFADDR, r))
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	require.NoError(t, unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r))
	l, err := net.Listen("tcp", own+":0")
	require.NoError(t, err)
	defer l.Close()
	_, err = (&Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	assert.ErrorIs(t, err, ErrAddress)
	pinned := &Dialer{Pinned: []netip.Prefix{netip.MustParsePrefix(own + "/32")}}
	conn, err := pinned.DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	conn.Close()
}
