package fusedev

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// scheduler is the state of a Conn's reader goroutines.
//
// The cost of a request is mostly two context switches. So one reader, the leader,
// performs the requests that it reads instead of passing them on, and it polls for
// a moment after each reply. Followers start when requests queue up. A follower
// becomes the leader when the leader's Handler stalls.
type scheduler struct {
	spins bool

	leader   atomic.Pointer[reader]
	wake     chan struct{} // each value wakes an idle follower
	deferred chan func()   // see Defer
	idle     atomic.Int32  // followers that wait for wake
	readers  atomic.Int32
	spare    chan *reader  // readers that have ended, for their buffers
	dozing   atomic.Bool   // supervise sleeps until rouse
	rouse    chan struct{} // wakes supervise
	ended    chan struct{} // closed when the file system is unmounted
	end      sync.Once
	all      sync.WaitGroup
}

// reader is a goroutine that reads and performs one request at a time.
type reader struct {
	in, out []byte
	both    []byte    // in and out
	request [1][]byte // the arguments of HandleRequest
	reply   [1][]byte
	asleep  atomic.Bool   // it waits for a request
	since   atomic.Int64  // start of the current request, Unix nanoseconds; 0: none
	last    time.Time     // end of the last request
	shared  time.Time     // until then other processes probably want the processor: it does not poll
	spin    time.Duration // how long it polls after last
	queued  int           // successive requests that were queued already
}

const (
	maxIdle     = 4                      // idle followers
	maxDeferred = 16                     // deferred functions; each may hold a descriptor
	spinTime    = 30 * time.Microsecond  // the longest that a leader polls
	stallTime   = time.Millisecond       // a leader's request that takes longer makes a follower the leader
	pileUp      = 4                      // successive queued requests that start a follower
	yieldTime   = 500 * time.Microsecond // a longer sched_yield(2), after which no request is queued, was the time slice of another process
	sharedTime  = 100 * time.Millisecond // without polling after that
	dozeTime    = 5 * time.Millisecond   // without requests, until supervise sleeps
	quietTime   = 100 * time.Millisecond // without requests, until Options.Idle
)

func newScheduler(spins bool) scheduler {
	return scheduler{
		spins:    spins,
		spare:    make(chan *reader, maxIdle),
		wake:     make(chan struct{}, MaxRequests),
		deferred: make(chan func(), maxDeferred),
		rouse:    make(chan struct{}, 1),
		ended:    make(chan struct{}),
	}
}

// newReader returns a reader with buffers. These are mapped, not allocated: most
// requests touch one page of each, and Go's heap would clear and keep all pages.
func (c *Conn) newReader() (*reader, error) {
	select {
	case r := <-c.spare:
		return r, nil
	default:
	}
	const size = MaxWrite + headerRoom
	both, err := unix.Mmap(-1, 0, 2*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("buffers of a reader: %w", err)
	}
	return &reader{both: both, in: both[:size:size], out: both[size:]}, nil
}

// free keeps the buffers of a reader for the next one, or unmaps them.
func (c *Conn) free(r *reader) {
	r = &reader{both: r.both, in: r.in, out: r.out}
	select {
	case c.spare <- r:
	default:
		_ = unix.Munmap(r.both)
	}
}

// Serve performs requests until the file system is unmounted or the connection is
// aborted. When it returns, no Handler runs, every deferred function has run, and
// nothing uses the descriptor any more.
func (c *Conn) Serve() {
	c.start()
	c.all.Go(c.supervise) // its count keeps Wait from returning before a reader that it starts
	<-c.ended
	c.all.Wait()
	for {
		select {
		case f := <-c.deferred:
			f()
		case r := <-c.spare:
			_ = unix.Munmap(r.both)
		default:
			c.close()
			return
		}
	}
}

// Defer runs f on a reader after a reply or once no request is queued, or at once when
// too many functions are deferred. It is for work that no client waits for, such as
// closing a file. Only a Handler may call it.
func (c *Conn) Defer(f func()) {
	select {
	case c.deferred <- f:
	default:
		f()
	}
}

// start wakes an idle follower, or starts one. It does nothing when MaxRequests
// readers run.
func (c *Conn) start() {
	if c.idle.Load() > 0 {
		select {
		case c.wake <- struct{}{}:
		default: // as many are awake already
		}
		return
	}
	if c.readers.Add(1) > MaxRequests {
		c.readers.Add(-1)
		return
	}
	c.all.Go(func() {
		r, err := c.newReader()
		if err != nil { // the other readers go on
			c.readers.Add(-1)
			c.logger.Warn("fuse", "err", err)
			return
		}
		defer c.free(r)
		for c.next(r) {
		}
	})
}

// next reads and performs one request. It reports false when the reader must end.
func (c *Conn) next(r *reader) bool {
	for waited := false; ; {
		if l := c.leader.Load(); l != nil && l != r && l.asleep.Load() && len(c.deferred) == 0 {
			// The next request wakes the leader in any case, for nothing if this reader takes it.
			if !c.follow() {
				return false
			}
		}
		c.leader.CompareAndSwap(nil, r)
		n, errno := c.dev.read(r.in)
		switch errno {
		case 0:
			c.begin(r, waited)
			c.handle(r, n)
			if waited && awaited(r.in) { // the next request comes only after the client has taken its reply
				c.catchUp()
			}
			r.last = time.Now()
			r.since.Store(0)
			return true
		case unix.EINTR, unix.ENOENT: // ENOENT: the request was interrupted before it was read
		case unix.EAGAIN:
			waited = true
			if !c.wait(r) {
				return false
			}
		default: // ENODEV: unmounted or aborted
			c.finish(errno)
			return false
		}
	}
}

// finish ends all readers.
func (c *Conn) finish(errno syscall.Errno) {
	c.end.Do(func() {
		if errno != unix.ENODEV {
			c.logger.Error("fuse: read", "err", errno)
		}
		close(c.ended)
	})
}

// wait returns true when a request may be queued, and false when the reader must
// end.
func (c *Conn) wait(r *reader) bool {
	leads := c.leader.Load() == r
	if leads && c.poll(r) {
		return true
	}
	if len(c.deferred) > 0 {
		c.work(r, time.Now())
		c.catchUp()
		r.since.Store(0)
		return true
	}
	if !leads {
		return c.follow()
	}
	r.asleep.Store(true)
	c.dev.wait()
	r.asleep.Store(false)
	return true
}

// awaited reports whether a client waits for the reply to a request: not for those that
// follow close(2).
func awaited(request []byte) bool {
	const release, releaseDir = 18, 29 // linux/fuse.h
	op := (*fuse.InHeader)(unsafe.Pointer(&request[0])).Opcode
	return op != release && op != releaseDir
}

// catchUp runs one deferred function.
func (c *Conn) catchUp() {
	select {
	case f := <-c.deferred:
		f()
	default:
	}
}

// poll yields the processor, so that the client can run on it, and reports whether the
// leader must look for a request again. When another process runs instead, polling only
// takes time from the client: a process that yields is scheduled late, one that sleeps soon.
func (c *Conn) poll(r *reader) bool {
	began := time.Now()
	if began.Sub(r.last) >= r.spin {
		return false
	}
	c.dev.yield()
	if now := time.Now(); now.Sub(began) > yieldTime && !c.dev.ready() {
		r.spin, r.shared = 0, now.Add(sharedTime)
	}
	return true
}

// follow waits until the follower is woken. It reports false when the follower
// must end: the file system is unmounted, or enough others are idle.
func (c *Conn) follow() bool {
	defer c.idle.Add(-1)
	if c.idle.Add(1) > maxIdle {
		c.readers.Add(-1)
		return false
	}
	if c.leader.Load() == nil { // its start did not count this follower as idle
		return true
	}
	select {
	case <-c.wake:
		return true
	case <-c.ended:
		return false
	}
}

// begin records the start of a request. It adapts how long the reader polls, and
// starts a follower when requests queue up.
func (c *Conn) begin(r *reader, waited bool) {
	now := time.Now()
	switch {
	case !c.spins, now.Before(r.shared):
	case now.Sub(r.last) < spinTime:
		r.spin = spinTime
	default:
		r.spin /= 2
	}
	if waited {
		r.queued = 0
	} else if r.queued++; r.queued == pileUp {
		r.queued = 0
		c.start()
	}
	c.work(r, now)
}

// work records that a reader is busy, and wakes supervise.
func (c *Conn) work(r *reader, now time.Time) {
	r.since.Store(now.UnixNano())
	if c.dozing.Load() && c.dozing.CompareAndSwap(true, false) {
		c.rouse <- struct{}{}
	}
}

// supervise replaces a leader whose request takes longer than stallTime, so that
// other requests do not wait for that one. It sleeps while there are no requests.
func (c *Conn) supervise() {
	for busy := time.Now(); ; time.Sleep(stallTime) {
		select {
		case <-c.ended:
			return
		default:
		}
		now := time.Now()
		if r := c.leader.Load(); r == nil {
			busy = now
			c.start()
		} else if since := r.since.Load(); since != 0 {
			busy = now
			if now.UnixNano()-since > int64(stallTime) && c.leader.CompareAndSwap(r, nil) {
				c.start()
			}
		}
		if now.Sub(busy) < dozeTime {
			continue
		}
		c.dozing.Store(true)
		if r := c.leader.Load(); r != nil && r.since.Load() != 0 && c.dozing.CompareAndSwap(true, false) {
			continue // that reader may have read dozing before it was set
		}
		idle := time.AfterFunc(quietTime-dozeTime, c.idling)
		select {
		case <-c.rouse:
			idle.Stop()
			busy = time.Now()
		case <-c.ended:
			idle.Stop()
			return
		}
	}
}

// Descriptors returns how many descriptors a process that serves a Conn may keep
// open: the limit of getrlimit(2) without a reserve for requests in flight, three
// descriptors each. It is 0 when the process has no limit.
func Descriptors() int {
	const reserve = 3*MaxRequests + 256
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil || r.Cur > 1<<30 {
		return 0
	}
	limit := int(r.Cur)
	return limit - min(limit/2, reserve)
}

// HandlesWithin returns the largest number of handles up to want, where 0 is unlimited,
// for which this process has descriptors: a value for fs.Limits. A process that confines
// itself calls it first.
func HandlesWithin(want int) int {
	most := Descriptors()
	if most == 0 || want != 0 && want < most {
		return want
	}
	return most
}
