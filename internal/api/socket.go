package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
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
	name, release, err := shortName(socket)
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

// shortPath returns a name for a socket that fits into sockaddr_un (108
// bytes): of a longer path, one by a descriptor of its directory, which stays
// open as long as the process.
func shortPath(path string) string {
	name, _, err := shortName(path)
	if err != nil {
		return path // the caller's system call fails
	}
	return name
}

// shortName is shortPath with a function that closes the descriptor.
func shortName(path string) (name string, release func(), err error) {
	if len(path) < 108 {
		return path, func() {}, nil
	}
	fd, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("socket %q: %w", path, err)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, filepath.Base(path)), func() { unix.Close(fd) }, nil
}
