package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

// takeListener checks and stores the listening socket that came with OpReady. Init made
// it before any command: it is in the sandbox's network, and no process of the sandbox
// has it. The caller holds mu.
func (s *Session) takeListener(files []*os.File) error {
	want := 0
	if s.spec.Proxy {
		want = 1
	}
	if len(files) != want {
		return fmt.Errorf("init sent %d descriptors when it was ready", len(files))
	}
	if want == 0 {
		return nil
	}
	if err := control(files[0], isListener); err != nil {
		return fmt.Errorf("init sent no listening socket: %w", err)
	}
	l, err := net.FileListener(files[0]) // a duplicate
	if err != nil {
		return fmt.Errorf("listening socket: %w", err)
	}
	descriptors.Close(files)
	s.listens = l
	return nil
}

// isListener returns an error unless fd is a TCP socket that listens at ProxyAddress.
func isListener(fd int) error {
	for option, want := range map[int]int{unix.SO_DOMAIN: unix.AF_INET, unix.SO_PROTOCOL: unix.IPPROTO_TCP, unix.SO_ACCEPTCONN: 1} {
		got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
		if err != nil {
			return err
		}
		if got != want {
			return errors.New("wrong socket")
		}
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	if in4, ok := at.(*unix.SockaddrInet4); !ok || *in4 != *pid1.ProxyAddr() {
		return errors.New("wrong address")
	}
	return nil
}
