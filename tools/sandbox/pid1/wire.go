package pid1

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/descriptors"
)

// Limits of the control socket between the daemon and init.
const (
	// ControlFD is the descriptor of the control socket in init.
	ControlFD  = 3
	maxRequest = 192 << 10 // bytes; below net.core.wmem_default
	maxReply   = 4 << 10   // bytes; the daemon reads no more
	maxFiles   = 3         // descriptors with a message

	sendTimeout = 10 * time.Second // the other end may have stopped reading
)

// Op is the kind of a message.
type Op string

// The kinds of messages.
const (
	OpReady   Op = "ready"   // init → daemon, once
	OpExec    Op = "exec"    // daemon → init, with a descriptor if Argv[0] is FileWorker
	OpStarted Op = "started" // init → daemon, with descriptors, or with Errno and none
	OpSignal  Op = "signal"  // daemon → init
	OpStopped Op = "stopped" // init → daemon: a command on a terminal, by a signal; once until a SIGCONT of OpSignal
	OpExited  Op = "exited"  // init → daemon
	OpOutlive Op = "outlive" // daemon → init: keep exit statuses for the next daemon
	OpState   Op = "state"   // daemon → init, from the next daemon: commands but those of Keep end; init → daemon, with the last ID: OpExited of what has ended follows
)

// Request is a message of the daemon. Words are bytes: a path need not be UTF-8.
type Request struct {
	Op     Op          `json:"op"`
	ID     uint64      `json:"id"`
	Argv   [][]byte    `json:"argv,omitempty"`
	Env    [][]byte    `json:"env,omitempty"`
	Dir    []byte      `json:"dir,omitempty"`
	TTY    *Size       `json:"tty,omitempty"`
	Signal unix.Signal `json:"signal,omitempty"`
	Turn   uint64      `json:"turn,omitempty"` // of OpSignal with SIGCONT: OpStopped returns it; 0: that of the last one
	Keep   []uint64    `json:"keep,omitempty"` // of OpState
}

// Size is the size of a terminal in characters.
type Size struct{ Rows, Cols uint16 }

// Reply is a message of init.
type Reply struct {
	Op     Op          `json:"op"`
	ID     uint64      `json:"id"`
	PID    int         `json:"pid,omitempty"`   // of OpStarted: in the sandbox
	Errno  unix.Errno  `json:"errno,omitempty"` // of OpStarted: why the command did not start; of OpExited: its status is lost
	Dir    bool        `json:"dir,omitempty"`   // Errno is of the command's directory
	Code   int         `json:"code,omitempty"`
	Signal unix.Signal `json:"signal,omitempty"`
	Turn   uint64      `json:"turn,omitempty"` // of OpStopped: of the last SIGCONT
}

// DirError says why a command cannot start in its directory. Other errors of a start are of the program.
type DirError struct{ unix.Errno }

func (e DirError) Unwrap() error { return e.Errno }

// Err returns why a command did not start, or nil.
func (r *Reply) Err() error {
	switch {
	case r.Errno == 0:
		return nil
	case r.Dir:
		return DirError{r.Errno}
	}
	return r.Errno
}

// Wire is one end of the control socket. Several goroutines may send, one receives. It does without package net, whose
// initialisation would be a part of each sandbox's start.
type Wire struct {
	socket *os.File
	buf    []byte
}

// NewPair returns init's end of a new control socket, and the daemon's.
func NewPair() (theirs *os.File, ours *Wire, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("control socket: %w", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "control")
	if ours, err = newWire(os.NewFile(uintptr(fds[0]), "control"), maxReply); err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return theirs, ours, nil
}

// Close closes the socket. A Receive in progress returns an error.
func (w *Wire) Close() error { return w.socket.Close() }

// OpenWire returns a Wire on the end of the control socket that another daemon has left.
func OpenWire(f *os.File) (*Wire, error) { return newWire(f, maxReply) }

// File returns a duplicate of the socket.
func (w *Wire) File() (*os.File, error) {
	fd := -1
	fds, err := descriptors.Numbers(w.socket)
	if err == nil {
		fd, err = unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), "control"), nil
}

// newWire returns a Wire that receives messages of at most size bytes. It closes f.
func newWire(f *os.File, size int) (*Wire, error) {
	defer f.Close()
	domain, err := unix.GetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err == nil && domain != unix.AF_UNIX {
		err = errors.New("not a unix socket")
	}
	fd := -1
	if err == nil {
		fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true) // for the runtime's poller: deadlines, and a Close that ends Receive
	}
	if err != nil {
		unix.Close(fd) // of -1 it is an error and no more
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return &Wire{socket: os.NewFile(uintptr(fd), "control"), buf: make([]byte, size)}, nil
}

// Send sends one message with descriptors, which stay the caller's. It fails after
// 10 s when the other end does not read.
func (w *Wire) Send(v any, fds ...int) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxRequest {
		return descriptors.ErrTruncated
	}
	if err := w.socket.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	return descriptors.Write(w.socket, b, fds...)
}

// Receive reads one message and its descriptors, which have O_CLOEXEC and become the
// caller's. A truncated message or too many descriptors is an error.
func (w *Wire) Receive(v any) (received Files, err error) {
	n, fds, err := descriptors.Read(w.socket, w.buf, maxFiles)
	if err != nil {
		return nil, err
	}
	for _, fd := range fds { // non-blocking, so that Close and deadlines end a Read
		err = errors.Join(err, unix.SetNonblock(fd, true))
	}
	received = descriptors.Files(fds, "sandbox")
	if err == nil {
		err = json.Unmarshal(w.buf[:n], v)
	}
	if err != nil {
		received.Close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return received, nil
}

// Files are descriptors that came with a message.
type Files []*os.File

// Close closes all of them.
func (f Files) Close() { descriptors.Close(f) }

func stringsOf(words [][]byte) []string {
	s := make([]string, len(words))
	for i, w := range words {
		s[i] = string(w)
	}
	return s
}
