// Package packets sends values and open files between processes of ours, a JSON value a packet.
package packets

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/descriptors"
)

// Max is the largest packet, in bytes: below net.core.wmem_default.
const Max = 192 << 10

const (
	maxFiles    = 3 // descriptors in a packet
	sendTimeout = 10 * time.Second
)

// Wire is one end of a SOCK_SEQPACKET that carries one JSON value a packet, and descriptors. Several goroutines may send, one
// receives. It does without package net, whose initialisation would be a part of each sandbox's start.
type Wire struct {
	Socket *os.File
	buf    []byte
	turn   sync.Mutex // held while a packet is sent, so that no other sender moves the deadline
}

// Pair returns a Wire that receives packets of at most size bytes, and its other end.
func Pair(size int) (ours *Wire, theirs *os.File, err error) {
	socket, theirs, err := descriptors.Pair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil, nil, err
	}
	return &Wire{Socket: socket, buf: make([]byte, size)}, theirs, nil
}

// Open returns a Wire on a descriptor, which becomes the Wire's.
func Open(fd, size int) (*Wire, error) {
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil { // for the runtime's poller: deadlines, and a Close that ends Receive
		return nil, os.NewSyscallError("fcntl", err)
	}
	return &Wire{Socket: os.NewFile(uintptr(fd), "socket"), buf: make([]byte, size)}, nil
}

// Close closes the socket. A Receive in progress returns an error.
func (w *Wire) Close() error { return w.Socket.Close() }

// Send sends one packet with descriptors, which stay the caller's. It fails after 10 s when the other end does not read.
func (w *Wire) Send(v any, fds ...int) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // which makes six bytes of one
	if err := encoder.Encode(v); err != nil {
		return err
	}
	b := text.Bytes()
	if len(b) > Max {
		return descriptors.ErrTruncated
	}
	w.turn.Lock()
	defer w.turn.Unlock()
	if err := w.Socket.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	return descriptors.Write(w.Socket, b, fds...)
}

// Receive reads one packet and its descriptors, which have O_CLOEXEC, do not block, and become the caller's. A truncated packet or
// too many descriptors is an error.
func (w *Wire) Receive(v any) (received []*os.File, err error) {
	n, fds, err := descriptors.Read(w.Socket, w.buf, maxFiles)
	if err != nil {
		return nil, err
	}
	for _, fd := range fds { // so that Close and deadlines end a Read
		err = errors.Join(err, unix.SetNonblock(fd, true))
	}
	received = descriptors.Files(fds, "received")
	if err == nil {
		err = json.Unmarshal(w.buf[:n], v)
	}
	if err != nil {
		descriptors.Close(received)
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return received, nil
}
