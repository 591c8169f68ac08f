package terminal

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Foreground reports whether the process may read a terminal and set its modes: its process group is the terminal's
// foreground process group (tcgetpgrp(3)), or the terminal is not the one of its session.
func Foreground(fd int) bool {
	group, err := unix.IoctlGetUint32(fd, unix.TIOCGPGRP)
	return err != nil || int(group) == unix.Getpgrp()
}

// pause waits until it is time to look again whether the process is in the foreground; false when ctx has ended. No signal
// says so: bash's fg sends SIGCONT to a stopped job alone.
func pause(ctx context.Context) bool {
	select {
	case <-time.After(100 * time.Millisecond):
		return true
	case <-ctx.Done():
		return false
	}
}

// await waits for the foreground; false when ctx has ended.
func await(ctx context.Context, fd int) bool {
	for !Foreground(fd) {
		if !pause(ctx) {
			return false
		}
	}
	return true
}

// ignoreStops keeps the kernel from stopping the process group when one of its processes reads a terminal, sets its modes
// or, with tostop, writes to it in the background. A read then fails with EIO (termios(3)).
func ignoreStops() { signal.Ignore(unix.SIGTTIN, unix.SIGTTOU) }

// input is a terminal that is read in the foreground alone.
type input struct {
	file *os.File
	turn chan struct{} // has room for one: who reads, or holds
}

// Input returns a reader of a file. Of a terminal it reads in the foreground alone: a Read in the background waits. Other
// files are returned as they are.
func Input(f *os.File) io.Reader {
	raw, err := f.SyscallConn()
	if err != nil {
		return f
	}
	is := false
	// Fd would make reads of a pipe block.
	if err := raw.Control(func(fd uintptr) { is = term.IsTerminal(int(fd)) }); err != nil || !is {
		return f
	}
	return &input{f, make(chan struct{}, 1)}
}

// Read implements io.Reader.
func (i *input) Read(p []byte) (int, error) {
	ignoreStops()
	fd := int(i.file.Fd())
	for again := true; ; {
		await(context.Background(), fd)
		_ = typed(fd, -1) // an error is the read's too
		i.turn <- struct{}{}
		if !Foreground(fd) || !typed(fd, 0) { // a read that waits has what is typed for the shell, until this process has stopped
			<-i.turn
			continue
		}
		n, err := i.file.Read(p)
		<-i.turn
		if !errors.Is(err, unix.EIO) || !again {
			return n, err
		}
		again = !Foreground(fd) // one EIO may be of the background, although the process has left it
	}
}

// hold keeps reads from beginning until release is called.
func (i *input) hold() (release func()) {
	select {
	case i.turn <- struct{}{}:
		return func() { <-i.turn }
	case <-time.After(settleTime): // somebody else has read what there was
		return func() {}
	}
}

// typed waits for milliseconds, any number if it is negative, until a read of a terminal would not wait: poll(2). It reports whether
// that is so.
func typed(fd, wait int) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, wait)
		if err != unix.EINTR {
			return n > 0 || err != nil
		}
	}
}

// File returns the terminal that a stream is; nil if it is none.
func File(stream any) *os.File {
	switch s := stream.(type) {
	case *input:
		return s.file
	case *os.File:
		if Is(s) {
			return s
		}
	}
	return nil
}

// Flush drops what was typed on a terminal and nobody has read: tcflush(3).
func Flush(fd int) { _ = unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH) }
