// Package descriptors sends open files to another process, over a unix socket: SCM_RIGHTS of unix(7).
package descriptors

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const most = 8 // files of one Send

// Send sends files to the process at the other end of a socket, a SOCK_SEQPACKET. It does not wait.
func Send(socket *os.File, files ...*os.File) (err error) {
	fds, err := Numbers(files)
	if err != nil {
		return err
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	if failed := raw.Control(func(fd uintptr) {
		err = unix.Sendmsg(int(fd), []byte{1}, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	}); failed != nil {
		return failed
	}
	return err
}

// Receive receives the files of one Send, until end. It returns nil at the end of the socket.
func Receive(socket *os.File, end time.Time) (files []*os.File) {
	raw, err := socket.SyscallConn()
	if err != nil || socket.SetReadDeadline(end) != nil {
		return nil
	}
	var text [1]byte
	rights := make([]byte, unix.CmsgSpace(4*most))
	n, nrights := 0, 0
	err = raw.Read(func(fd uintptr) bool {
		for err = unix.EINTR; err == unix.EINTR; {
			n, nrights, _, _, err = unix.Recvmsg(int(fd), text[:], rights, unix.MSG_CMSG_CLOEXEC)
		}
		return err != unix.EAGAIN
	})
	if err != nil || n != 1 {
		return nil
	}
	return Of(rights[:nrights])
}

// Numbers returns the descriptors of files. File.Fd would make them blocking, for the process that reads them, too.
func Numbers(files []*os.File) (fds []int, err error) {
	for _, f := range files {
		raw, err := f.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) })
		}
		if err != nil {
			return nil, err
		}
	}
	return fds, nil
}

// Of returns the files of a control message, as recvmsg(2) has it.
func Of(rights []byte) (files []*os.File) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files
}
