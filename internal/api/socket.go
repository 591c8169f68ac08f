package api

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/proc"
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

// connect connects to a socket.
func connect(ctx context.Context, socket string) (*net.UnixConn, error) {
	name, release, err := proc.SocketName(socket)
	if err != nil {
		return nil, err
	}
	defer release()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", name)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// PeerUID returns the user of the other end, as the kernel says: unix(7), SO_PEERCRED.
func PeerUID(c net.Conn) (uid uint32, ok bool) {
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return 0, false
	}
	cred := peer(conn)
	if cred == nil {
		return 0, false
	}
	return cred.Uid, true
}

// peer returns the process of the other end; nil if it is unknown.
func peer(conn *net.UnixConn) (cred *unix.Ucred) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil
	}
	if raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}) != nil || err != nil {
		return nil // on an error it returns user 0
	}
	return cred
}

// shortPath returns a name for a socket as proc.SocketName does, for as long as the process lives.
func shortPath(path string) string {
	name, _, err := proc.SocketName(path)
	if err != nil {
		return path // the caller's system call fails
	}
	return name
}
