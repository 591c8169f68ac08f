package pid1

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// ProxyAddress is where the socket of ArgListen listens. The network of the sandbox is
// its own: the port is free.
const ProxyAddress = "127.0.0.1:3128"

// ProxyAddr returns ProxyAddress for system calls.
func ProxyAddr() *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: 3128, Addr: [4]byte{127, 0, 0, 1}}
}

// backlog is the length of the queue of connections that are not accepted yet; the
// kernel lowers it to net.core.somaxconn.
const backlog = 1024

// ready sends OpReady, with a socket that listens at ProxyAddress if listen is set. No
// process of the sandbox keeps the socket: only the daemon accepts and closes.
func (in *initProcess) ready(listen bool) error {
	if !listen {
		return in.wire.Send(Reply{Op: OpReady})
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, ProxyAddr()); err != nil {
		return fmt.Errorf("bind %s: %w", ProxyAddress, err)
	}
	// Its connections inherit reno, which every kernel has. Congestion control that paces
	// what it sends, as bbr does, only costs time between two ends on one host.
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno"); err != nil {
		return fmt.Errorf("congestion control of %s: %w", ProxyAddress, err)
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return fmt.Errorf("listen at %s: %w", ProxyAddress, err)
	}
	return in.wire.Send(Reply{Op: OpReady}, fd)
}
