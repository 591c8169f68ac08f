package reconnect

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/descriptors"
)

const most = 8 // sockets of a daemon

// Pass sends a process the sockets of a daemon by the other end of ControlFD, a SOCK_SEQPACKET. It does not wait.
func Pass(control *os.File, sockets ...*os.File) error {
	fds, err := descriptors.Numbers(sockets...)
	if err != nil {
		return err
	}
	to, err := descriptors.Numbers(control)
	if err != nil {
		return err
	}
	return descriptors.WriteTo(to[0], []byte{1}, unix.MSG_DONTWAIT, fds...)
}

// Take receives the sockets of the next daemon, until end. It returns nil if there is none.
func Take(control *os.File, end time.Time) []*os.File {
	if control.SetReadDeadline(end) != nil {
		return nil
	}
	var text [1]byte
	_, fds, err := descriptors.Read(control, text[:], most)
	if err != nil {
		return nil
	}
	return descriptors.Files(fds, "received")
}
