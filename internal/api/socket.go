package api

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/paths"
)

// Listen listens on a unix socket that only this user may use. The socket's mode
// is set before bind, because the umask belongs to the whole process: unix(7).
func Listen(path string) (net.Listener, error) {
	os.Remove(path) // of an earlier daemon; the lock is ours
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	return private.Listen(context.Background(), "unix", shortPath(path))
}

// PeerUID returns the user of the other end, as the kernel says: unix(7), SO_PEERCRED.
func PeerUID(c net.Conn) (uid uint32, ok bool) {
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return 0, false
	}
	cred := client.Peer(conn)
	if cred == nil {
		return 0, false
	}
	return cred.Uid, true
}

// shortPath returns a name for a socket as paths.SocketName does, for as long as the process lives.
func shortPath(path string) string {
	name, _, err := paths.SocketName(path)
	if err != nil {
		return path // the caller's system call fails
	}
	return name
}
