package pid1

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of the control socket between the daemon and init.
const (
	// ControlFD is the descriptor of the control socket in init.
	ControlFD = 3

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
	Code   int         `json:"code,omitempty"`
	Signal unix.Signal `json:"signal,omitempty"`
}

// Wire is one end of the control socket. Several goroutines may send, one receives.
type Wire struct {
	conn *net.UnixConn
	buf  []byte
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

// ErrTooLarge is the error of a message over its bound.
var ErrTooLarge = errors.New("message too large")

// Close closes the socket. A Receive in progress returns an error.
func (w *Wire) Close() error { return w.conn.Close() }

// OpenWire returns a Wire on the end of the control socket that another daemon has left.
func OpenWire(f *os.File) (*Wire, error) { return newWire(f, maxReply) }

// File returns a duplicate of the socket.
func (w *Wire) File() (*os.File, error) { return w.conn.File() }

// newWire returns a Wire that receives messages of at most size bytes. It closes f.
func newWire(f *os.File, size int) (*Wire, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	c, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, errors.New("control socket: not a unix socket")
	}
	return &Wire{conn: c, buf: make([]byte, size)}, nil
}

// Send sends one message with descriptors, which stay the caller's. It fails after
// 10 s when the other end does not read.
func (w *Wire) Send(v any, fds ...int) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxRequest {
		return ErrTooLarge
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if err := w.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	_, _, err = w.conn.WriteMsgUnix(b, oob, nil)
	return err
}

// Receive reads one message and its descriptors, which have O_CLOEXEC and become the
// caller's. A truncated message or too many descriptors is an error.
func (w *Wire) Receive(v any) (received Files, err error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := w.conn.ReadMsgUnix(w.buf, oob)
	if err != nil {
		return nil, err
	}
	received, err = parseRights(oob[:oobn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = ErrTooLarge
	}
	if err == nil {
		err = json.Unmarshal(w.buf[:n], v)
	}
	if err != nil {
		received.Close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return received, nil
}

func parseRights(oob []byte) (received Files, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	for _, m := range messages {
		fds, e := unix.ParseUnixRights(&m)
		if e != nil {
			err = errors.Join(err, e)
		}
		for _, fd := range fds {
			// Non-blocking, so that Close and deadlines end a Read.
			err = errors.Join(err, unix.SetNonblock(fd, true))
			received = append(received, os.NewFile(uintptr(fd), "sandbox"))
		}
	}
	return received, err
}

// Files are descriptors that came with a message.
type Files []*os.File

// Close closes all of them.
func (f Files) Close() {
	for _, file := range f {
		file.Close()
	}
}

func stringsOf(words [][]byte) []string {
	s := make([]string, len(words))
	for i, w := range words {
		s[i] = string(w)
	}
	return s
}
