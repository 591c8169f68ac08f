package callfs

import (
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/scopefs/scopefs/fs/fusedev"
)

// A sandbox's processes make the server work, and the sandbox's limits do not bound
// that. So a mount serves a bounded number of requests in each period; the others wait
// for the next one. It bounds requests, not time: on a loaded machine a request takes
// longer, and costs no more.
const (
	period  = 250 * time.Millisecond
	maximum = 1000 // about 70 µs of a CPU each
)

// pace bounds the requests of a Handler.
type pace struct {
	fusedev.Handler

	mu    sync.Mutex
	began time.Time // of the period
	count int       // of requests in it
}

// HandleRequest implements fusedev.Handler.
func (p *pace) HandleRequest(in, out [][]byte) (int, fuse.Status) {
	for wait := p.next(); wait > 0; wait = p.next() {
		time.Sleep(wait)
	}
	return p.Handler.HandleRequest(in, out)
}

// next counts a request, or returns how long it must wait: at most period.
func (p *pace) next() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	past := time.Since(p.began)
	if past >= period {
		p.began, p.count, past = time.Now(), 0, 0
	}
	if p.count == maximum {
		return period - past
	}
	p.count++
	return 0
}
