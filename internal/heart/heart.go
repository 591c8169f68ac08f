// Package heart has the heartbeat between the daemon and its processes.
package heart

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Heart is one end of the heartbeat between the daemon and a process. Each end sends beats
// and responds to the other's. The socket carries nothing else, so that throttled
// messages cannot delay a response.
//
// A Heart measures silence and decides nothing: a beat without a response is no evidence
// about the other process on a host where processes wait for a processor.
type Heart struct {
	socket *os.File
	due    chan struct{} // of one element: a beat of the other end has no response yet

	mu   sync.Mutex
	sent time.Time // of the beat that has no response yet; zero: none
}

// The messages of a heartbeat, one byte each.
const (
	beat  = 'b' // the request
	pulse = 'p' // the response
)

// responseDelay limits the cost of responding to a process that sends beats without end.
const responseDelay = 10 * time.Millisecond

// NewHeart returns a Heart on one end of a socket pair, which must be
// non-blocking.
func NewHeart(socket *os.File) *Heart { return &Heart{socket: socket, due: make(chan struct{}, 1)} }

// Serve responds to beats until the other end is closed. It calls check before
// each response. If check blocks, this end is silent.
func (h *Heart) Serve(check func()) {
	closed := make(chan struct{})
	go func() { defer close(closed); h.listen() }()
	for last := (time.Time{}); ; last = time.Now() {
		select {
		case <-h.due:
		case <-closed:
			return
		}
		time.Sleep(responseDelay - time.Since(last))
		check()
		if _, err := h.socket.Write([]byte{pulse}); err != nil {
			return
		}
	}
}

// listen takes what arrives, until the other end is closed. It does not respond: where Silence takes a beat first, epoll(7)
// wakes nobody for it.
func (h *Heart) listen() {
	raw, err := h.socket.SyscallConn()
	last := time.Time{}
	for open := true; err == nil && open; last = time.Now() {
		err = raw.Read(func(fd uintptr) (some bool) {
			some, open = h.receive(fd)
			return some || !open
		})
		time.Sleep(responseDelay - time.Since(last))
	}
}

// receive takes what is in the socket, at most a few messages. It reports whether there were some, and whether the other end
// is open.
func (h *Heart) receive(fd uintptr) (some, open bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var buf [16]byte
	n, err := unix.Read(int(fd), buf[:])
	if n <= 0 {
		return err == unix.EINTR, err == unix.EAGAIN || err == unix.EINTR
	}
	for _, b := range buf[:n] {
		switch b {
		case beat:
			select {
			case h.due <- struct{}{}:
			default:
			}
		case pulse:
			h.sent = time.Time{}
		}
	}
	return true, true
}

// control calls f with the descriptor, also while Serve waits for it.
func (h *Heart) control(f func(fd uintptr)) {
	if raw, err := h.socket.SyscallConn(); err == nil {
		_ = raw.Control(f) // an error: the socket is closed
	}
}

// Beat sends a beat, unless an earlier one has no response yet. It does not block.
func (h *Heart) Beat() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.sent.IsZero() {
		return
	}
	h.sent = time.Now()
	h.control(func(fd uintptr) { _, _ = unix.Write(int(fd), []byte{beat}) })
}

// Silence returns how long a beat has had no response, or 0. It reads the socket itself:
// a response that arrived before the call counts, even if Serve has not run since.
func (h *Heart) Silence() time.Duration {
	h.control(func(fd uintptr) { h.receive(fd) })
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sent.IsZero() {
		return 0
	}
	return max(time.Since(h.sent), 1)
}
