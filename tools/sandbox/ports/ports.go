// Package ports is the process of a sandbox that does for the daemon what only a process of the sandbox can. It makes sockets of the
// sandbox's network: listening sockets for services of the host, and connections to listeners of the sandbox. And it repeats what the
// host has changed in a view: see package echoes. Package sandbox starts it from the program scopefs-files, with a socket of packets as
// standard input. So the daemon enters no namespace.
//
// The process decides nothing and passes no byte. It closes its end of each socket that it has sent. The daemon checks each socket.
package ports

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/echo"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/packets"
	"github.com/scopefs/scopefs/tools/sandbox/echoes"
)

// Arg as the first argument of scopefs-files makes the process one of this package.
const Arg = "ports"

// The bounds of requests.
const (
	MaxRequests = 16              // at a time: the daemon sends no more
	MaxMessage  = echo.MaxMessage // bytes
	ConnectTime = 5 * time.Second // for a connection: a listener may take none
	backlog     = 128             // connections that the daemon has not accepted yet
)

// Request asks for a socket, or for what package echoes does. One of Listen and Connect is set, a port of 127.0.0.1, or Echo; Connect
// is also a port of ::1.
type Request struct {
	ID      uint64        `json:"id"`
	Listen  uint16        `json:"listen,omitempty"`
	Connect uint16        `json:"connect,omitempty"`
	Echo    *echo.Request `json:"echo,omitempty"`
	View    string        `json:"view,omitempty"` // where the view of Echo is mounted
}

// Reply comes with the socket, unless Echo or Errno is set.
type Reply struct {
	ID    uint64      `json:"id"`
	Errno unix.Errno  `json:"errno,omitempty"`
	Echo  *echo.Reply `json:"echo,omitempty"`
}

// Main answers requests until the daemon has closed its end, and returns the exit status.
func Main() int {
	wire, err := packets.Open(0, MaxMessage)
	if err != nil {
		return 1
	}
	for {
		var r Request
		files, err := wire.Receive(&r)
		descriptors.Close(files)
		if err != nil {
			return 0
		}
		go answer(wire, r)
	}
}

func answer(wire *packets.Wire, r Request) {
	fd, err := 0, error(unix.EINVAL)
	switch {
	case r.Echo != nil:
		reply, err := echoes.Do(r.View, *r.Echo)
		errno, _ := err.(unix.Errno)
		if wire.Send(Reply{ID: r.ID, Errno: errno, Echo: &reply}) != nil {
			wire.Close()
		}
		return
	case r.Listen != 0:
		fd, err = listen(r.Listen)
	case r.Connect != 0:
		if fd, err = connect(unix.AF_INET, &unix.SockaddrInet4{Port: int(r.Connect), Addr: [4]byte{127, 0, 0, 1}}); err == unix.ECONNREFUSED {
			fd, err = connect(unix.AF_INET6, &unix.SockaddrInet6{Port: int(r.Connect), Addr: [16]byte{15: 1}})
		}
	}
	if err != nil {
		errno, _ := err.(unix.Errno) // every error here is one
		err = wire.Send(Reply{ID: r.ID, Errno: errno})
	} else {
		err = wire.Send(Reply{ID: r.ID}, fd)
		unix.Close(fd)
	}
	if err != nil {
		wire.Close() // Main returns: the daemon starts another process
	}
}

func listen(port uint16) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	// A listener of the last daemon may have connections in TIME_WAIT.
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}})
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		unix.Close(fd)
	}
	return fd, err
}

// connect blocks for ConnectTime at most: SO_SNDTIMEO of socket(7) bounds connect(2), too.
func connect(family int, to unix.Sockaddr) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	bound := unix.NsecToTimeval(int64(ConnectTime))
	if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &bound); err == nil {
		err = unix.Connect(fd, to)
	}
	for err == unix.EINTR { // of the runtime: the connection goes on
		err = unix.Connect(fd, to)
		if err == unix.EISCONN {
			err = nil
		}
	}
	if err != nil {
		unix.Close(fd)
	}
	return fd, err
}
