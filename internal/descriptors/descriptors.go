// Package descriptors sends open files to another process, over a unix socket: SCM_RIGHTS of unix(7).
package descriptors

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const most = 8 // files of one Send

// Send sends files to the process at the other end of a socket, a SOCK_SEQPACKET. It does not wait.
func Send(socket *os.File, files ...*os.File) error {
	control, err := Control(files...)
	if err != nil {
		return err
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	if failed := raw.Control(func(fd uintptr) {
		err = unix.Sendmsg(int(fd), []byte{1}, control, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
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
	room := Room(most)
	n, nroom := 0, 0
	err = raw.Read(func(fd uintptr) bool {
		for err = unix.EINTR; err == unix.EINTR; {
			n, nroom, _, _, err = unix.Recvmsg(int(fd), text[:], room, unix.MSG_CMSG_CLOEXEC)
		}
		return err != unix.EAGAIN
	})
	if err != nil || n != 1 {
		return nil
	}
	files, _ = Files(room[:nroom], "received")
	return files
}

// Control returns the control message that sends files, which stay the caller's; nil for none. They do not become blocking, as they would by
// File.Fd, also for the process that gets them.
func Control(files ...*os.File) ([]byte, error) {
	if len(files) == 0 {
		return nil, nil
	}
	var fds []int
	for _, f := range files {
		raw, err := f.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) })
		}
		if err != nil {
			return nil, err
		}
	}
	return unix.UnixRights(fds...), nil
}

// Room returns a buffer for the control message of n files at most.
func Room(n int) []byte { return make([]byte, unix.CmsgSpace(4*n)) }

// Files returns the files of received control messages. They are the caller's, and closed if there is an error. The caller receives
// with MSG_CMSG_CLOEXEC, as package net does.
func Files(control []byte, name string) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(control)
	for i := range messages {
		fds, wrong := unix.ParseUnixRights(&messages[i])
		err = errors.Join(err, wrong)
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), name))
		}
	}
	if err != nil {
		Close(files)
		return nil, err
	}
	return files, nil
}

// Close closes files.
func Close(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
