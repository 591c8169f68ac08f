package client

import (
	"context"
	"net"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/paths"
)

// Connect connects to a socket.
func Connect(ctx context.Context, socket string) (*net.UnixConn, error) {
	name, release, err := paths.SocketName(socket)
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

// Peer returns the process of the other end; nil if it is unknown.
func Peer(conn *net.UnixConn) (cred *unix.Ucred) {
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
