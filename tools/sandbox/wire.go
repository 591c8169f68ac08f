package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The daemon and init talk over a SOCK_SEQPACKET pair: one JSON value a packet,
// descriptors beside it.
const (
	maxRequest = 192 << 10 // bytes; below net.core.wmem_default
	maxReply   = 4 << 10   // bytes; what the daemon will read of init
	maxFiles   = 3         // descriptors beside a reply
)

type op string

const (
	opReady   op = "ready"   // init → daemon, once
	opExec    op = "exec"    // daemon → init
	opStarted op = "started" // init → daemon, with descriptors unless Errno
	opSignal  op = "signal"  // daemon → init
	opExited  op = "exited"  // init → daemon
)

// request is what the daemon asks. Words are bytes: a path need not be UTF-8.
type request struct {
	Op     op          `json:"op"`
	ID     uint64      `json:"id"`
	Argv   [][]byte    `json:"argv,omitempty"`
	Env    [][]byte    `json:"env,omitempty"`
	Dir    []byte      `json:"dir,omitempty"`
	TTY    *Size       `json:"tty,omitempty"`
	Signal unix.Signal `json:"signal,omitempty"`
}

// reply is what init says.
type reply struct {
	Op     op          `json:"op"`
	ID     uint64      `json:"id"`
	PID    int         `json:"pid,omitempty"`   // of opStarted: in the sandbox
	Errno  unix.Errno  `json:"errno,omitempty"` // of opStarted: why it did not
	Code   int         `json:"code,omitempty"`
	Signal unix.Signal `json:"signal,omitempty"`
}

// wire is one end. Any number may send; one receives.
type wire struct {
	conn *net.UnixConn
	buf  []byte
}

// newWire takes over f.
func newWire(f *os.File, size int) (*wire, error) {
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
	return &wire{conn: c, buf: make([]byte, size)}, nil
}

func (w *wire) send(v any, fds ...int) error {
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
	// The other end may have stopped to listen: nobody waits for it forever.
	w.conn.SetWriteDeadline(time.Now().Add(killTimeout))
	_, _, err = w.conn.WriteMsgUnix(b, oob, nil)
	return err
}

// receive reads one value and the descriptors beside it, which carry
// O_CLOEXEC and are the caller's. A cut message or too many of them is an error.
func (w *wire) receive(v any) (files []*os.File, err error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := w.conn.ReadMsgUnix(w.buf, oob)
	if err != nil {
		return nil, err
	}
	files, err = parseRights(oob[:oobn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.New("message too large")
	}
	if err == nil {
		err = json.Unmarshal(w.buf[:n], v)
	}
	if err != nil {
		closeAll(files)
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return files, nil
}

func parseRights(oob []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	for _, m := range messages {
		fds, e := unix.ParseUnixRights(&m)
		if e != nil {
			err = errors.Join(err, e)
		}
		for _, fd := range fds {
			// Non-blocking, so that reads can be given up by Close and deadlines.
			err = errors.Join(err, unix.SetNonblock(fd, true))
			files = append(files, os.NewFile(uintptr(fd), "sandbox"))
		}
	}
	return files, err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// bytesOf and stringsOf turn words to bytes and back.
func bytesOf(words []string) [][]byte {
	b := make([][]byte, len(words))
	for i, w := range words {
		b[i] = []byte(w)
	}
	return b
}

func stringsOf(words [][]byte) []string {
	s := make([]string, len(words))
	for i, w := range words {
		s[i] = string(w)
	}
	return s
}
