package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// conn is the connection to the kernel: it reads requests from /dev/fuse, lets
// go-fuse's protocol server decode them and call the view, and writes the
// answers.
//
// What a request costs is mostly that two processes wake each other. So one
// reader, the leader, does what it is asked itself instead of handing it on, and
// reads on for a moment after each answer before it sleeps. Others are called
// when requests pile up, and one takes its place when it is held up.
type conn struct {
	fd     int
	proto  *fuse.ProtocolServer
	logger *slog.Logger
	spins  bool
	expire atomic.Uint32 // how a name is dropped: see dropName
	epochs atomic.Bool   // dropNames works

	leader  atomic.Pointer[reader]
	calls   chan struct{} // each makes an idle reader read
	chores  chan func()   // what nobody waits for
	idle    atomic.Int32
	readers atomic.Int32
	spare   chan *reader  // that have ended: their buffers are large
	dozing  atomic.Bool   // watch sleeps
	rouse   chan struct{} // wakes it
	ended   chan struct{} // closed when the mount is gone
	end     sync.Once
	all     sync.WaitGroup
}

// reader reads and answers requests, one after the other.
type reader struct {
	in, out []byte
	both    []byte        // what in and out are parts of
	since   atomic.Int64  // when it began to answer, in nanoseconds since 1970; 0: it does not
	last    time.Time     // when it last answered
	spin    time.Duration // how long it reads on after that before it sleeps
	queued  int           // requests in a row that it found waiting
}

const (
	maxWrite   = 1 << 20 // bytes; the most data the kernel sends in one request
	headerRoom = 4096    // bytes beside them: FUSE_BUFFER_HEADER_SIZE, linux fs/fuse/fuse_i.h

	maxReaders = 256                    // requests at a time
	maxIdle    = 4                      // readers that wait to be called
	maxChores  = 16                     // each may hold a descriptor
	spinTime   = 30 * time.Microsecond  // the longest that a reader reads on
	heldUp     = time.Millisecond       // after which another takes a leader's place
	pileUp     = 4                      // requests found waiting in a row that call another reader
	quietTime  = 100 * time.Millisecond // after which watch sleeps
)

func newConn(fd int, fs fuse.RawFileSystem, mount *fuse.MountOptions, opt Options) *conn {
	return &conn{
		fd:     fd,
		proto:  fuse.NewProtocolServer(fs, mount),
		logger: opt.Logger,
		// With one processor, reading on would keep the client from it.
		spins:  opt.Spin && runtime.GOMAXPROCS(0) > 1,
		spare:  make(chan *reader, maxIdle),
		calls:  make(chan struct{}, maxReaders),
		chores: make(chan func(), maxChores),
		rouse:  make(chan struct{}, 1),
		ended:  make(chan struct{}),
	}
}

// take returns a reader. Its buffers come from the kernel and go back there: most
// requests touch a page of each, and Go's heap would keep, and clear, all of them.
func (c *conn) take() (*reader, error) {
	select {
	case r := <-c.spare:
		return r, nil
	default:
	}
	const size = maxWrite + headerRoom
	both, err := unix.Mmap(-1, 0, 2*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("buffers of a reader: %w", err)
	}
	return &reader{both: both, in: both[:size:size], out: both[size:]}, nil
}

// give takes a reader back that has ended.
func (c *conn) give(r *reader) {
	r = &reader{both: r.both, in: r.in, out: r.out}
	select {
	case c.spare <- r:
	default:
		_ = unix.Munmap(r.both)
	}
}

// init answers the kernel's first request and returns what was agreed on.
func (c *conn) init() (*fuse.InitOut, error) {
	r, err := c.take()
	if err != nil {
		return nil, err
	}
	defer c.give(r)
	n, err := unix.Read(c.fd, r.in)
	if err != nil {
		return nil, err
	}
	c.epochs.Store((*fuse.InitIn)(unsafe.Pointer(&r.in[0])).Minor >= epochMinor)
	size := c.answer(r, n)
	head, out := unsafe.Sizeof(fuse.OutHeader{}), new(fuse.InitOut)
	if size < int(head+unsafe.Sizeof(*out)) {
		return nil, errors.New("the kernel's FUSE is of another major version")
	}
	*out = *(*fuse.InitOut)(unsafe.Pointer(&r.out[head]))
	if out.Flags64()&fuse.CAP_HAS_EXPIRE_ONLY != 0 {
		c.expire.Store(fuse.EXPIRE_ONLY)
	}
	return out, unix.SetNonblock(c.fd, true)
}

// serve answers requests until the mount is gone. The descriptor stays open:
// somebody may be about to notify the kernel, and the process ends now.
func (c *conn) serve() {
	c.more()
	c.all.Go(c.watch) // it may start readers: nobody must think that the last has ended
	<-c.ended
	c.all.Wait()
}

// more makes another reader read.
func (c *conn) more() {
	if c.idle.Load() > 0 {
		select {
		case c.calls <- struct{}{}:
		default: // they are on their way
		}
		return
	}
	if c.readers.Add(1) > maxReaders {
		c.readers.Add(-1)
		return
	}
	c.all.Go(func() {
		r, err := c.take()
		if err != nil { // others read on
			c.readers.Add(-1)
			c.logger.Warn("fuse", "err", err)
			return
		}
		defer c.give(r)
		for c.next(r) {
		}
	})
}

// next reads and answers one request; false when there will be no more.
func (c *conn) next(r *reader) bool {
	for waited := false; ; {
		c.leader.CompareAndSwap(nil, r) // there is none, or not any more
		n, errno := c.read(r)
		switch errno {
		case 0:
			c.arrived(r, waited)
			c.answer(r, n)
			return true
		case unix.EINTR, unix.ENOENT: // ENOENT: the client gave up meanwhile
		case unix.EAGAIN:
			waited = true
			if !c.wait(r) {
				return false
			}
		default: // ENODEV: unmounted or aborted
			c.end.Do(func() { close(c.ended) })
			return false
		}
	}
}

// read is read(2) of a descriptor that does not block, so the Go runtime need
// not be told.
func (c *conn) read(r *reader) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(c.fd), uintptr(unsafe.Pointer(&r.in[0])), uintptr(len(r.in)))
	return int(n), errno
}

// later does what nobody waits for when no request waits.
func (c *conn) later(chore func()) {
	select {
	case c.chores <- chore:
	default: // there are too many to put off another
		chore()
	}
}

// wait returns when there may be a request, and false when there will be none.
func (c *conn) wait(r *reader) bool {
	select {
	case chore := <-c.chores:
		c.begin(r, time.Now())
		chore()
		r.since.Store(0)
		return true
	default:
	}
	if c.leader.Load() != r {
		defer c.idle.Add(-1)
		if c.idle.Add(1) > maxIdle { // it was called when many were held up
			c.readers.Add(-1)
			return false
		}
		if c.leader.Load() == nil { // and who called for another did not see us
			return true
		}
		select {
		case <-c.calls:
			return true
		case <-c.ended:
			return false
		}
	}
	if time.Since(r.last) < r.spin {
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // the processor is anyone's who has work for it
		return true
	}
	_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}, nil, nil)
	return true
}

// arrived learns from a request when the next is to be expected.
func (c *conn) arrived(r *reader, waited bool) {
	now := time.Now()
	switch {
	case !c.spins:
	case now.Sub(r.last) < spinTime:
		r.spin = spinTime
	default:
		r.spin /= 2
	}
	if waited {
		r.queued = 0
	} else if r.queued++; r.queued == pileUp {
		r.queued = 0
		c.more()
	}
	c.begin(r, now)
}

// begin lets watch know that a reader is at work.
func (c *conn) begin(r *reader, now time.Time) {
	r.since.Store(now.UnixNano())
	if c.dozing.Load() && c.dozing.CompareAndSwap(true, false) {
		c.rouse <- struct{}{}
	}
}

// answer does what is asked, and returns the size of the answer.
func (c *conn) answer(r *reader, n int) int {
	size, status := c.proto.HandleRequest([][]byte{r.in[:n]}, [][]byte{r.out})
	if size == 0 && !status.Ok() {
		c.logger.Warn("fuse: not a request", "bytes", n, "status", status)
	}
	if size > 0 {
		// ENOENT: the client gave up meanwhile. ENODEV: the mount is gone.
		if _, err := unix.Write(c.fd, r.out[:size]); err != nil && err != unix.ENOENT && err != unix.ENODEV {
			c.logger.Warn("fuse: answer", "err", err)
		}
	}
	r.last = time.Now()
	r.since.Store(0)
	return size
}

// watch puts another reader in the place of a leader that is held up by what
// it does, so that others need not wait for that.
func (c *conn) watch() {
	for busy := time.Now(); ; time.Sleep(heldUp) {
		select {
		case <-c.ended:
			return
		default:
		}
		now := time.Now()
		if r := c.leader.Load(); r == nil {
			busy = now
			c.more()
		} else {
			if since := r.since.Load(); since != 0 {
				busy = now
				if now.UnixNano()-since > int64(heldUp) && c.leader.CompareAndSwap(r, nil) {
					c.more()
				}
			}
		}
		if now.Sub(busy) < quietTime {
			continue
		}
		c.dozing.Store(true)
		if r := c.leader.Load(); r != nil && r.since.Load() != 0 && c.dozing.CompareAndSwap(true, false) {
			continue // it began just now and may not have seen that we doze
		}
		select {
		case <-c.rouse:
			busy = time.Now()
		case <-c.ended:
			return
		}
	}
}

// descriptorLimit is how many descriptors the process may have; 0: as many as it
// likes. getrlimit(2).
func descriptorLimit() int {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil || r.Cur > 1<<30 {
		return 0
	}
	return int(r.Cur)
}
