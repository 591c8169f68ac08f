package fusedev

import (
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// queue is a device without a kernel: a queue of requests, each a number.
type queue struct {
	mu       sync.Mutex
	changed  sync.Cond
	requests []int
	errnos   []syscall.Errno // read returns these first
	gone     bool
	written  [][]byte
	yields   time.Duration // how long yield takes
}

func newQueue() *queue {
	q := &queue{}
	q.changed.L = &q.mu
	return q
}

func (q *queue) send(requests ...int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.requests = append(q.requests, requests...)
	q.changed.Broadcast()
}

func (q *queue) unmount() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gone = true
	q.changed.Broadcast()
}

func (q *queue) read(p []byte) (int, syscall.Errno) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.errnos) > 0:
		errno := q.errnos[0]
		q.errnos = q.errnos[1:]
		return 0, errno
	case q.gone:
		return 0, syscall.ENODEV
	case len(q.requests) == 0:
		return 0, syscall.EAGAIN
	}
	n := copy(p, strconv.Itoa(q.requests[0]))
	q.requests = q.requests[1:]
	return n, 0
}

func (q *queue) write(p []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.written = append(q.written, append([]byte(nil), p...))
	return nil
}

func (q *queue) wait() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.requests) == 0 && !q.gone {
		q.changed.Wait()
	}
}

func (q *queue) ready() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.requests) > 0 || q.gone
}

func (q *queue) yield() { time.Sleep(q.yields) }

func (q *queue) replies() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.written)
}

// work is a Handler: it records which reader performed each request, and when.
type work struct {
	do func(request int)

	mu      sync.Mutex
	readers map[*byte]int // by the buffer
	started map[int]time.Time
	running int
	most    int
}

func (w *work) HandleRequest(in, out [][]byte) (int, fuse.Status) {
	request, err := strconv.Atoi(string(in[0]))
	if err != nil {
		return 0, fuse.EINVAL
	}
	w.mu.Lock()
	w.readers[&in[0][0]]++
	w.started[request] = time.Now()
	w.running++
	w.most = max(w.most, w.running)
	w.mu.Unlock()
	w.do(request)
	w.mu.Lock()
	w.running--
	w.mu.Unlock()
	return copy(out[0], in[0]), fuse.OK
}

func (w *work) count() (running, most, readers int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running, w.most, len(w.readers)
}

// serving runs f in a bubble of synthetic time, beside a Conn that serves q. Then
// it unmounts q and waits for Serve.
func serving(t *testing.T, do func(request int), f func(t *testing.T, c *Conn, q *queue, w *work)) {
	synctest.Test(t, func(t *testing.T) {
		q, w := newQueue(), &work{do: do, readers: map[*byte]int{}, started: map[int]time.Time{}}
		c := newConn(-1, q, w, Options{})
		served := make(chan struct{})
		go func() {
			c.Serve()
			close(served)
		}()
		synctest.Wait()
		f(t, c, q, w)
		q.unmount()
		<-served
	})
}

func TestLeaderPerformsWhatItReads(t *testing.T) {
	serving(t, func(int) {}, func(t *testing.T, _ *Conn, q *queue, w *work) {
		for i := range 100 {
			q.send(i)
			synctest.Wait()
			require.Equal(t, i+1, q.replies(), "no timer is involved")
		}
		_, _, readers := w.count()
		assert.Equal(t, 1, readers)
	})
}

func TestStalledLeaderIsReplaced(t *testing.T) {
	release := make(chan struct{})
	do := func(request int) {
		if request == 0 {
			<-release
		}
	}
	serving(t, do, func(t *testing.T, _ *Conn, q *queue, w *work) {
		release = make(chan struct{}) // of the bubble
		time.Sleep(2 * quietTime)     // supervise sleeps
		q.send(0, 1)
		for range 8 {
			time.Sleep(stallTime / 2)
		}
		synctest.Wait()
		require.Equal(t, 1, q.replies(), "the second request")
		late := w.started[1].Sub(w.started[0])
		assert.Greater(t, late, stallTime)
		assert.LessOrEqual(t, late, 3*stallTime)
		close(release)
		synctest.Wait()
		assert.Equal(t, 2, q.replies())
		q.send(2)
		synctest.Wait()
		assert.Equal(t, 3, q.replies())
	})
}

// TestIdle: Idle runs once after the last of several requests.
func TestIdle(t *testing.T) {
	var idle atomic.Int32
	serving(t, func(int) {}, func(t *testing.T, c *Conn, q *queue, _ *work) {
		synctest.Wait()
		time.Sleep(2 * quietTime)
		synctest.Wait()
		c.idling = func() { idle.Add(1) } // supervise sleeps
		q.send(0)
		synctest.Wait()
		assert.Zero(t, idle.Load())
		time.Sleep(2 * quietTime)
		synctest.Wait()
		assert.EqualValues(t, 1, idle.Load())
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.EqualValues(t, 1, idle.Load(), "nothing has happened since")
	})
}

// TestDoze: after a request supervise looks a few times, and not until Idle: each look wakes a process that has nothing to do.
func TestDoze(t *testing.T) {
	serving(t, func(int) {}, func(t *testing.T, c *Conn, q *queue, _ *work) {
		for range 3 {
			q.send(0)
			synctest.Wait()
			assert.False(t, c.dozing.Load())
			time.Sleep(10 * stallTime)
			synctest.Wait()
			assert.True(t, c.dozing.Load())
		}
	})
}

func TestFastLeaderIsNotReplaced(t *testing.T) {
	serving(t, func(int) { time.Sleep(stallTime / 4) }, func(t *testing.T, _ *Conn, q *queue, w *work) {
		for i := range 50 {
			q.send(i)
			time.Sleep(stallTime)
		}
		_, most, readers := w.count()
		assert.Equal(t, 1, most)
		assert.Equal(t, 1, readers)
	})
}

// Requests that queue up start a follower, though none of them stalls.
func TestQueueStartsFollower(t *testing.T) {
	serving(t, func(int) { time.Sleep(stallTime / 2) }, func(t *testing.T, _ *Conn, q *queue, w *work) {
		for i := range 4 * pileUp {
			q.send(i)
		}
		time.Sleep(20 * stallTime)
		_, most, _ := w.count()
		assert.Greater(t, most, 1)
		assert.Equal(t, 4*pileUp, q.replies())
	})
}

// Handlers that block do not stop others, up to MaxRequests.
func TestBound(t *testing.T) {
	var release chan struct{}
	do := func(request int) {
		if request < MaxRequests {
			<-release
		}
	}
	serving(t, do, func(t *testing.T, c *Conn, q *queue, w *work) {
		release = make(chan struct{})
		for i := range MaxRequests - 1 {
			q.send(i)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		running, _, _ := w.count()
		require.Equal(t, MaxRequests-1, running)
		q.send(MaxRequests)
		synctest.Wait()
		require.Equal(t, 1, q.replies(), "the last reader")

		q.send(MaxRequests-1, MaxRequests+1) // one that blocks the last reader
		time.Sleep(time.Second)
		synctest.Wait()
		running, most, _ := w.count()
		assert.Equal(t, MaxRequests, running)
		assert.Equal(t, MaxRequests, most)
		assert.Equal(t, 1, q.replies(), "no reader is left")

		release <- struct{}{}
		synctest.Wait()
		assert.Equal(t, 3, q.replies(), "one that was released, and the next")

		close(release)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, MaxRequests+2, q.replies())
		assert.LessOrEqual(t, int(c.readers.Load()), maxIdle+1, "a leader and idle followers stay")
		q.send(MaxRequests + 2)
		synctest.Wait()
		assert.Equal(t, MaxRequests+3, q.replies())
	})
}

// Serve returns once the file system is unmounted and no Handler runs.
func TestUnmountEndsServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, release := newQueue(), make(chan struct{})
		w := &work{do: func(int) { <-release }, readers: map[*byte]int{}, started: map[int]time.Time{}}
		c := newConn(-1, q, w, Options{})
		served := make(chan struct{})
		go func() {
			c.Serve()
			close(served)
		}()
		q.send(0, 1, 2)
		time.Sleep(time.Second)
		q.unmount()
		time.Sleep(time.Second)
		select {
		case <-served:
			t.Fatal("Serve returned while a Handler runs")
		default:
		}
		deferred := 0
		c.Defer(func() { deferred++ }) // as a Handler would
		close(release)
		<-served
		assert.Equal(t, 1, deferred)
		before := q.replies()
		assert.False(t, c.InvalidateEntries())
		c.InvalidateInode(1, true)
		assert.Equal(t, before, q.replies(), "the descriptor may be another file's by now")
	})
}

// An interrupted request is no error of the device.
func TestInterruptedRead(t *testing.T) {
	serving(t, func(int) {}, func(t *testing.T, _ *Conn, q *queue, _ *work) {
		q.mu.Lock()
		q.errnos = []syscall.Errno{syscall.ENOENT, syscall.EINTR, syscall.ENOENT}
		q.mu.Unlock()
		q.send(0)
		synctest.Wait()
		assert.Equal(t, 1, q.replies())
	})
}

// A deferred function runs after the reply to a request that was waited for, or once no
// request is queued.
func TestDefer(t *testing.T) {
	var c *Conn
	var q *queue
	var repliesThen []int
	do := func(request int) {
		if request == 0 {
			c.Defer(func() { repliesThen = append(repliesThen, q.replies()) })
		}
	}
	serving(t, do, func(t *testing.T, conn *Conn, queue *queue, _ *work) {
		c, q = conn, queue
		q.send(1, 0, 2)
		synctest.Wait()
		q.send(0, 1, 2)
		synctest.Wait()
		assert.Equal(t, []int{3, 4}, repliesThen)
	})

	now := 0
	c = newConn(-1, newQueue(), nil, Options{})
	for range maxDeferred + 3 {
		c.Defer(func() { now++ })
	}
	assert.Equal(t, 3, now, "what exceeds the bound runs at once")
}

// A leader polls for the next request after a fast one, and less after each slow one.
func TestSpin(t *testing.T) { synctest.Test(t, testSpin) }

func testSpin(t *testing.T) {
	before := runtime.GOMAXPROCS(2)
	defer runtime.GOMAXPROCS(before)
	q := newQueue()
	c := newConn(-1, q, nil, Options{Spin: true})
	r := &reader{last: time.Now()} // the next request is fast
	c.leader.Store(r)
	c.begin(r, true)
	assert.Equal(t, spinTime, r.spin)
	assert.True(t, c.wait(r), "it polls: the queue is empty, and its wait would block")
	assert.Equal(t, spinTime, r.spin)
	time.Sleep(time.Hour)
	c.begin(r, true)
	assert.Equal(t, spinTime/2, r.spin)
	c.begin(r, true)
	assert.Equal(t, spinTime/4, r.spin)

	r.last, q.yields = time.Now(), time.Millisecond
	c.begin(r, true)
	q.send(0)
	assert.True(t, c.wait(r))
	assert.Equal(t, spinTime, r.spin, "the client ran")
	_, _ = q.read(make([]byte, 1))
	r.last = time.Now()
	assert.True(t, c.wait(r))
	assert.Zero(t, r.spin, "another process ran")
	r.last = time.Now()
	c.begin(r, true)
	assert.Zero(t, r.spin)
	time.Sleep(sharedTime)
	r.last = time.Now()
	c.begin(r, true)
	assert.Equal(t, spinTime, r.spin)

	runtime.GOMAXPROCS(1)
	c = newConn(-1, newQueue(), nil, Options{Spin: true})
	c.begin(r, true)
	r = &reader{last: time.Now().Add(time.Hour)}
	c.begin(r, true)
	assert.Zero(t, r.spin, "with one processor the client could not run")
	c = newConn(-1, newQueue(), nil, Options{})
	c.begin(r, true)
	assert.Zero(t, r.spin)
}
