package fs

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// TestKept: several threads use, replace and drop directories. None is closed while it is used,
// and in the end none is open.
func TestKept(t *testing.T) {
	base := t.TempDir()
	const dirs = 16
	k := kept{dirs: make([]*keptDir, dirs/2)}
	nodes := make([]*node, dirs)
	for i := range nodes {
		name := filepath.Join(base, strconv.Itoa(i))
		require.NoError(t, os.Mkdir(name, 0o755))
		var st unix.Stat_t
		require.NoError(t, unix.Stat(name, &st))
		nodes[i] = &node{ident: beneath.FileID{Ino: st.Ino}}
	}
	root, err := beneath.OpenRoot(base, ".")
	require.NoError(t, err)
	defer root.Close()
	var users sync.WaitGroup
	for i := range 6 {
		users.Go(func() {
			for round := range 5_000 {
				at := (i + round*7) % dirs
				n := nodes[at]
				switch round % 97 {
				case 3:
					k.dropAll()
				case 5, 17:
					k.drop(n)
				}
				d := k.take(n)
				if d == nil {
					dir, err := root.Dir(strconv.Itoa(at))
					if !assert.NoError(t, err) {
						return
					}
					d = k.add(n, dir)
				}
				st, err := d.Self().Stat()
				if !assert.NoError(t, err) || !assert.Equal(t, n.ident.Ino, st.Ino, "another directory has its descriptor") {
					return
				}
				k.give(d)
			}
		})
	}
	users.Wait()
	k.dropAll()
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range open {
		to, _ := os.Readlink("/proc/self/fd/" + fd.Name())
		assert.NotContains(t, to, base+"/")
	}
}

// TestKeptClosing: requests do not wait while the view closes a directory. close(2) of a TCP
// socket waits until the peer has read all data (SO_LINGER in socket(7)), so a socket stands in for
// a directory that takes long to close.
func TestKeptClosing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	conn, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	peer, err := listener.Accept()
	require.NoError(t, err)
	socket, err := conn.(*net.TCPConn).File()
	require.NoError(t, err)
	fd := int(socket.Fd())
	require.NoError(t, unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 60}))
	require.NoError(t, unix.SetNonblock(fd, true))
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 1<<16))
	}
	require.Equal(t, unix.EAGAIN, err)
	require.NoError(t, unix.SetNonblock(fd, false)) // close(2) does not wait otherwise
	slow, err := beneath.NewRoot(fd).Dir("")
	require.NoError(t, err)
	require.NoError(t, socket.Close())
	require.NoError(t, conn.Close())

	k := kept{dirs: make([]*keptDir, 1)}
	n := &node{}
	k.give(k.add(n, slow))
	dropped, free := make(chan struct{}), make(chan struct{})
	go func() { k.drop(n); close(dropped) }()
	go func() {
		for here := true; here; {
			k.mu.Lock()
			here = n.kept != nil
			k.mu.Unlock()
		}
		close(free)
	}()
	select {
	case <-free:
	case <-time.After(10 * time.Second):
		assert.Fail(t, "requests wait for close(2)")
	}
	select {
	case <-dropped:
		assert.Fail(t, "close(2) did not take long")
	default:
	}
	peer.Close()
	<-dropped
}
