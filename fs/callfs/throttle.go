package callfs

import (
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/scopefs/scopefs/fs/fusedev"
)

// The limits of a sandbox do not bound the work of the server for its processes. So a
// mount serves a bounded number of requests in each period, and the others wait for the
// next period. It bounds requests, not time: on a loaded machine a request takes longer
// and costs no more.
const (
	period  = 250 * time.Millisecond
	maximum = 1000 // about 70 µs of a CPU each
)

// throttle bounds the requests of a Handler.
type throttle struct {
	fusedev.Handler

	mu    sync.Mutex
	began time.Time // of the period
	count int       // of requests in it
}

// HandleRequest implements fusedev.Handler.
func (t *throttle) HandleRequest(in, out [][]byte) (int, fuse.Status) {
	for wait := t.next(); wait > 0; wait = t.next() {
		time.Sleep(wait)
	}
	return t.Handler.HandleRequest(in, out)
}

// next counts a request, or returns how long it must wait: at most period.
func (t *throttle) next() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	past := time.Since(t.began)
	if past >= period {
		t.began, t.count, past = time.Now(), 0, 0
	}
	if t.count == maximum {
		return period - past
	}
	t.count++
	return 0
}
