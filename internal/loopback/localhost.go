package loopback

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxPorts bounds the free ports that Listen tries.
const maxPorts = 8

// Listen listens at a TCP address, and keeps other users of the host from its port of localhost. Clients take that name for
// both ::1 and 127.0.0.1, in this order: whoever listens at the other one gets their connections, with links and tokens. Of
// an address that is one of the two, Listen binds the port of the other as well, until the listener is closed, and fails if
// another process has it. It does not listen there: a client is refused, and connects to the address itself.
func Listen(address string) (l *Listener, at netip.AddrPort, err error) {
	_, port, _ := net.SplitHostPort(address)
	for range maxPorts {
		if l, at, err = listen(address); err == nil || port != "0" {
			break
		}
	}
	return l, at, err
}

// Refused adds a remedy to the error of an address at which nobody can listen. other says how to give another address.
func Refused(err error, other string) error {
	if errors.Is(err, unix.EADDRINUSE) {
		other = "end the program that has the port (ss -ltnp shows it), or " + other
	}
	return fmt.Errorf("%w: %s", err, other)
}

func listen(address string) (*Listener, netip.AddrPort, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	held, at, err := Inherited(l)
	if err != nil {
		l.Close()
	}
	return held, at, err
}

// Inherited is [Listen] of a socket that listens already, as one of a service manager: systemd.socket(5).
func Inherited(l net.Listener) (*Listener, netip.AddrPort, error) {
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, netip.AddrPort{}, fmt.Errorf("%v is no TCP socket", l.Addr())
	}
	at, err := netip.ParseAddrPort(l.Addr().String())
	release := func() {}
	if err == nil {
		release, err = hold(at)
	}
	if err != nil {
		return nil, at, err
	}
	return &Listener{tcp, release}, at, nil
}

// Listener is a TCP listener that has the port of both addresses of localhost: see [Listen].
type Listener struct {
	*net.TCPListener
	release func()
}

// Close closes the listener, and leaves both ports to others.
func (l *Listener) Close() error {
	l.release()
	return l.TCPListener.Close()
}

// hold binds the port of the other address of localhost.
func hold(at netip.AddrPort) (release func(), err error) {
	var other unix.Sockaddr
	family := unix.AF_INET6
	switch at.Addr() {
	case netip.AddrFrom4([4]byte{127, 0, 0, 1}):
		other = &unix.SockaddrInet6{Port: int(at.Port()), Addr: netip.IPv6Loopback().As16()}
	case netip.IPv6Loopback():
		family, other = unix.AF_INET, &unix.SockaddrInet4{Port: int(at.Port()), Addr: [4]byte{127, 0, 0, 1}}
	default:
		return func() {}, nil
	}
	// Without SO_REUSEADDR, which lets another socket with it bind the port of one that does not listen: socket(7).
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		if err = unix.Bind(fd, other); err == nil {
			return sync.OnceFunc(func() { unix.Close(fd) }), nil
		}
		unix.Close(fd)
	}
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) { // the host has no such address
		return func() {}, nil
	}
	return nil, fmt.Errorf("port %d of the other address of localhost: %w", at.Port(), os.NewSyscallError("bind", err))
}
