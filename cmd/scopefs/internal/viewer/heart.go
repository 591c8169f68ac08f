package viewer

import (
	"os"
	"sync"
	"time"
)

// Heart tells the daemon and a view whether the other one still runs: each
// answers the other's beats, on a socket that carries nothing else, so that no
// message that is throttled delays an answer.
type Heart struct {
	socket *os.File
	asking sync.Mutex
	pulse  chan struct{}
}

// What a heart sends: a byte each, on a stream.
const (
	beat  = 'b' // are you there?
	pulse = 'p' // yes
)

// late is how much later than it asked for a timer may fire in a process that
// runs. One that was stopped itself knows nothing of the other.
const late = 500 * time.Millisecond

// calm bounds what it costs to answer another process that beats without end.
const calm = 10 * time.Millisecond

// NewHeart returns a Heart on one end of a socket pair, which does not block.
func NewHeart(socket *os.File) *Heart { return &Heart{socket: socket, pulse: make(chan struct{}, 1)} }

// Serve answers beats until the other end is closed. well is called before each
// answer: a process in which it does not return is taken for dead.
func (h *Heart) Serve(well func()) {
	var buf [16]byte
	for {
		n, err := h.socket.Read(buf[:])
		if err != nil {
			return
		}
		for _, b := range buf[:n] {
			switch b {
			case beat:
				well()
				if _, err := h.socket.Write([]byte{pulse}); err != nil {
					return
				}
				time.Sleep(calm)
			case pulse:
				select {
				case h.pulse <- struct{}{}:
				default:
				}
			}
		}
	}
}

// Alive reports whether the other process answers within a time.
func (h *Heart) Alive(within time.Duration) bool {
	h.asking.Lock()
	defer h.asking.Unlock()
	select {
	case <-h.pulse: // the answer to an earlier beat
	default:
	}
	_ = h.socket.SetWriteDeadline(time.Now().Add(within))
	_, err := h.socket.Write([]byte{beat})
	_ = h.socket.SetWriteDeadline(time.Time{}) // it would end Serve with its next answer
	if err != nil {
		return false
	}
	for {
		began := time.Now()
		select {
		case <-h.pulse:
			return true
		case <-time.After(within):
			if time.Since(began) < within+late {
				return false
			}
		}
	}
}
