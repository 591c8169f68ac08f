package viewer

import (
	"os"
	"sync"
	"time"
)

// Heart is one end of the heartbeat between the daemon and a view. Each end
// responds to the other's beats. The socket carries nothing else, so that
// throttled messages cannot delay a response.
type Heart struct {
	socket *os.File
	mu     sync.Mutex
	pulse  chan struct{}
}

// The messages of a heartbeat, one byte each.
const (
	beat  = 'b' // the request
	pulse = 'p' // the response
)

// timerSlack is the normal delay of a timer in a running process. A longer delay
// means that this process was itself stopped, and says nothing about the other.
const timerSlack = 500 * time.Millisecond

// responseDelay limits the cost of responding to a process that sends beats without end.
const responseDelay = 10 * time.Millisecond

// NewHeart returns a Heart on one end of a socket pair, which must be
// non-blocking.
func NewHeart(socket *os.File) *Heart { return &Heart{socket: socket, pulse: make(chan struct{}, 1)} }

// Serve responds to beats until the other end is closed. It calls check before
// each response. If check blocks, the other process considers this one dead.
func (h *Heart) Serve(check func()) {
	var buf [16]byte
	for {
		n, err := h.socket.Read(buf[:])
		if err != nil {
			return
		}
		for _, b := range buf[:n] {
			switch b {
			case beat:
				check()
				if _, err := h.socket.Write([]byte{pulse}); err != nil {
					return
				}
				time.Sleep(responseDelay)
			case pulse:
				select {
				case h.pulse <- struct{}{}:
				default:
				}
			}
		}
	}
}

// Alive reports whether the other process responds within the given time.
func (h *Heart) Alive(within time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.pulse: // the response to an earlier beat
	default:
	}
	_ = h.socket.SetWriteDeadline(time.Now().Add(within))
	_, err := h.socket.Write([]byte{beat})
	_ = h.socket.SetWriteDeadline(time.Time{}) // otherwise Serve would fail on its next response
	if err != nil {
		return false
	}
	for {
		began := time.Now()
		select {
		case <-h.pulse:
			return true
		case <-time.After(within):
			if time.Since(began) < within+timerSlack {
				return false
			}
		}
	}
}
