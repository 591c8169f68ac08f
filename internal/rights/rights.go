// Package rights has the descriptors in messages of unix sockets: SCM_RIGHTS in unix(7).
package rights

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Of returns the control message that sends files, which stay the caller's; nil for none. They do not become blocking, as they would by
// File.Fd, also for the process that gets them.
func Of(files ...*os.File) ([]byte, error) {
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
