// Package descriptors sends open files to another process, over a unix socket: SCM_RIGHTS of unix(7).
package descriptors

import (
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/interrupted"
)

// ErrTruncated reports a message with more bytes or files than the receiver takes.
var ErrTruncated = errors.New("message too large")

// Pair returns the two ends of a new unix socket of a kind, such as SOCK_STREAM. They do not block.
func Pair(kind int) (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket"), nil
}

// Write sends text and descriptors in one message on a socket that the runtime polls, until the deadline of the socket. The descriptors
// stay the caller's.
func Write(socket syscall.Conn, text []byte, fds ...int) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	if failed := raw.Write(func(fd uintptr) bool {
		err = WriteTo(int(fd), text, 0, fds...)
		return err != unix.EAGAIN
	}); failed != nil {
		return failed
	}
	return os.NewSyscallError("sendmsg", err)
}

// WriteTo is Write for the descriptor of a socket, with flags of sendmsg(2).
func WriteTo(fd int, text []byte, flags int, fds ...int) error {
	var control []byte
	if len(fds) > 0 {
		control = unix.UnixRights(fds...)
	}
	return interrupted.Retry(func() error { return unix.Sendmsg(fd, text, control, nil, unix.MSG_NOSIGNAL|flags) })
}

// Read receives a message into text, with up to most descriptors, which have O_CLOEXEC and are the caller's. The runtime polls the
// socket, until its deadline. Read returns io.EOF at the end of the socket, and ErrTruncated for a larger message.
func Read(socket syscall.Conn, text []byte, most int) (n int, fds []int, err error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, nil, err
	}
	if failed := raw.Read(func(fd uintptr) bool {
		n, fds, err = ReadFrom(int(fd), text, most)
		return err != unix.EAGAIN
	}); failed != nil {
		return 0, nil, failed
	}
	return n, fds, err
}

// ReadFrom is Read for the descriptor of a socket.
func ReadFrom(fd int, text []byte, most int) (n int, fds []int, err error) {
	control := make([]byte, unix.CmsgSpace(4*most))
	rights, flags := 0, 0
	for err = unix.EINTR; err == unix.EINTR; { // any number of times: a blocking socket waits for long
		n, rights, flags, _, err = unix.Recvmsg(fd, text, control, unix.MSG_CMSG_CLOEXEC)
	}
	switch {
	case err == unix.EAGAIN:
		return 0, nil, err
	case err != nil:
		return 0, nil, os.NewSyscallError("recvmsg", err)
	case n == 0 && rights == 0:
		return 0, nil, io.EOF
	}
	messages, err := unix.ParseSocketControlMessage(control[:rights])
	for i := range messages {
		more, wrong := unix.ParseUnixRights(&messages[i])
		fds, err = append(fds, more...), errors.Join(err, wrong)
	}
	if err == nil && (flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) > most) { // the room for one is that for two
		err = ErrTruncated
	}
	if err != nil {
		Close(Files(fds, ""))
		return 0, nil, err
	}
	return n, fds, nil
}

// Numbers returns the descriptors of files, which stay the caller's. They do not become blocking, as they would by File.Fd, also for
// the process that gets them.
func Numbers[F syscall.Conn](files ...F) (fds []int, err error) {
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

// Files returns files that have the descriptors.
func Files(fds []int, name string) []*os.File {
	var files []*os.File
	for _, fd := range fds {
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	return files
}

// Close closes files.
func Close(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
