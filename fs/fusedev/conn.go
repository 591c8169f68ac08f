package fusedev

import (
	"errors"
	"fmt"
	"log"
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

// Handler decodes one request, performs it and encodes the reply.
// *fuse.ProtocolServer implements it. It returns the size of the reply; 0 means
// that the request has none, as FORGET.
//
// A Conn calls HandleRequest from up to MaxRequests goroutines.
type Handler interface {
	HandleRequest(in, out [][]byte) (int, fuse.Status)
}

// Options configures a Conn. The zero value is usable.
type Options struct {
	// Spin lets a reader poll for up to 30 µs for the next request before it
	// sleeps. It saves two context switches a request and uses CPU time. It has no
	// effect with GOMAXPROCS=1, where it would delay the client.
	Spin bool

	// Idle is called when no request has arrived for 100 ms; nil: nothing. Requests may
	// arrive meanwhile.
	Idle func()

	// Patience is how long a request that changes nothing may take before the client gets EIO; 0: forever.
	Patience time.Duration
	Logger   *slog.Logger // nil discards
}

const (
	// MaxWrite is the most data of one WRITE request, in bytes. The Handler must
	// negotiate this size or a smaller one.
	MaxWrite = 1 << 20

	// MaxRequests is the most requests that a Conn handles at a time.
	MaxRequests = 256

	headerRoom = 4096 // bytes before the data: FUSE_BUFFER_HEADER_SIZE, linux fs/fuse/fuse_i.h
)

// Conn is a connection to the kernel over a descriptor of /dev/fuse. Serve reads
// requests, and the Handler performs them. The other methods send notifications
// and register backing files; they may be called from any goroutine.
type Conn struct {
	fd      int
	dev     device
	handler Handler
	logger  *slog.Logger
	idling  func() // Options.Idle

	patience time.Duration // Options.Patience
	scheduler

	expire atomic.Uint32 // FUSE_EXPIRE_ONLY, if the kernel supports it
	epochs atomic.Bool   // the kernel supports FUSE_NOTIFY_INC_EPOCH

	// open guards closed. A notification holds it for reading, so that none uses
	// the descriptor after Serve has returned.
	open   sync.RWMutex
	closed bool
}

// NewConn returns a Conn over fd, a descriptor of /dev/fuse that is mounted. The
// descriptor stays the caller's, who closes it after Serve has returned.
func NewConn(fd int, h Handler, opt Options) *Conn { return newConn(fd, descriptor(fd), h, opt) }

func newConn(fd int, dev device, h Handler, opt Options) *Conn {
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	if opt.Idle == nil {
		opt.Idle = func() {}
	}
	return &Conn{
		fd: fd, dev: dev, handler: h, logger: opt.Logger, idling: opt.Idle, patience: opt.Patience,
		scheduler: newScheduler(opt.Spin && runtime.GOMAXPROCS(0) > 1),
	}
}

// Init handles the kernel's first request, FUSE_INIT, and returns the reply: the
// protocol version and the features that both sides support. It must be called
// once, before Serve.
func (c *Conn) Init() (*fuse.InitOut, error) {
	if err := unix.SetNonblock(c.fd, true); err != nil {
		return nil, fmt.Errorf("/dev/fuse: %w", err)
	}
	r, err := c.newReader()
	if err != nil {
		return nil, err
	}
	defer c.free(r)
	n, errno := c.dev.read(r.in)
	for ; errno == unix.EAGAIN || errno == unix.EINTR; n, errno = c.dev.read(r.in) {
		c.dev.wait()
	}
	if errno != 0 {
		return nil, fmt.Errorf("/dev/fuse: first request: %w", errno)
	}
	c.epochs.Store((*fuse.InitIn)(unsafe.Pointer(&r.in[0])).Minor >= epochMinor)
	size := c.handle(r, n)
	head, out := unsafe.Sizeof(fuse.OutHeader{}), new(fuse.InitOut)
	if size < int(head+unsafe.Sizeof(*out)) {
		return nil, errors.New("/dev/fuse: the kernel speaks another major version of the protocol")
	}
	*out = *(*fuse.InitOut)(unsafe.Pointer(&r.out[head]))
	if out.Flags64()&fuse.CAP_HAS_EXPIRE_ONLY != 0 {
		c.expire.Store(fuse.EXPIRE_ONLY)
	}
	return out, nil
}

// handle performs the request in r.in[:n] and writes the reply. It returns the
// size of the reply.
func (c *Conn) handle(r *reader, n int) int {
	r.request[0], r.reply[0] = r.in[:n], r.out
	timer := c.expect(r.in)
	size, status := c.handler.HandleRequest(r.request[:], r.reply[:])
	if timer != nil && !timer.Stop() && size > 0 {
		c.takeBack(r, size)
		return size
	}
	if size == 0 && !status.Ok() {
		c.logger.Warn("fuse: malformed request", "bytes", n, "status", status)
	}
	if size > 0 {
		// ENOENT: the request was interrupted. ENODEV: the file system is unmounted.
		if err := c.dev.write(r.out[:size]); err != nil && err != unix.ENOENT && err != unix.ENODEV {
			c.logger.Warn("fuse: reply", "err", err)
		}
	}
	return size
}

// The codes of notifications: enum fuse_notify_code, linux/fuse.h.
const (
	notifyInode = 2
	notifyEntry = 3
	notifyEpoch = 8
	notifyPrune = 9
)

// epochMinor is the minor protocol version of FUSE_NOTIFY_INC_EPOCH, Linux 6.16.
const epochMinor = 44

// Epochs reports whether the kernel supports InvalidateEntries. It is valid after
// Init.
func (c *Conn) Epochs() bool { return c.epochs.Load() }

// InvalidateInode invalidates the cached attributes of an inode and, with data,
// its cached pages: FUSE_NOTIFY_INVAL_INODE. With data it waits for pages that the
// kernel is reading or writing. A Handler must not call it with data for an inode
// whose request it performs.
func (c *Conn) InvalidateInode(inode uint64, data bool) {
	out := fuse.NotifyInvalInodeOut{Ino: inode, Off: -1}
	if data {
		out.Off = 0 // to the end
	}
	_ = c.notify(notifyInode, unsafe.Slice((*byte)(unsafe.Pointer(&out)), unsafe.Sizeof(out)), "")
}

// InvalidateEntry invalidates the dentry of a name: FUSE_NOTIFY_INVAL_ENTRY. With
// expire the dentry stays in place, for processes that work below it, and the
// kernel looks the name up again at the next use; kernels before 6.2 drop it. A
// LOOKUP in flight may store the old result after that.
//
// It takes the lock of the directory, which a client holds while its request is in
// flight. A Handler must not call it: it could deadlock.
func (c *Conn) InvalidateEntry(dir uint64, name string, expire bool) {
	out := fuse.NotifyInvalEntryOut{Parent: dir, NameLen: uint32(len(name))}
	if expire {
		out.Flags = c.expire.Load()
	}
	_ = c.notify(notifyEntry, unsafe.Slice((*byte)(unsafe.Pointer(&out)), unsafe.Sizeof(out)), name+"\x00")
}

// InvalidateEntries expires all dentries, negative ones too, and reports whether
// the kernel supports that: FUSE_NOTIFY_INC_EPOCH, since Linux 6.16. It takes no
// lock.
func (c *Conn) InvalidateEntries() bool { return c.notify(notifyEpoch, nil, "") == nil }

// Prune makes the kernel forget inodes that no process uses, and reports whether
// the kernel supports that: FUSE_NOTIFY_PRUNE, since Linux 6.18. It takes no lock.
func (c *Conn) Prune(inodes []uint64) bool {
	type pruneOut struct {
		count, padding uint32
		spare          uint64
	}
	out := pruneOut{count: uint32(len(inodes))}
	body := append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(&out)), unsafe.Sizeof(out))...)
	body = append(body, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(inodes))), 8*len(inodes))...)
	return c.notify(notifyPrune, body, "") == nil
}

// notify sends a notification. The kernel answers ENOENT for an inode or a name
// that it does not have in its caches.
func (c *Conn) notify(code int32, body []byte, name string) error {
	head := fuse.OutHeader{Status: code}
	size := int(unsafe.Sizeof(head))
	msg := make([]byte, size, size+len(body)+len(name))
	msg = append(append(msg, body...), name...)
	head.Length = uint32(len(msg))
	*(*fuse.OutHeader)(unsafe.Pointer(&msg[0])) = head
	c.open.RLock()
	defer c.open.RUnlock()
	if c.closed {
		return unix.ENODEV
	}
	return c.dev.write(msg)
}

// close waits for notifications that are being sent, and refuses later ones.
func (c *Conn) close() {
	c.open.Lock()
	defer c.open.Unlock()
	c.closed = true
}

// The ioctls of FUSE passthrough: linux/fuse.h.
const (
	backingOpen  = 0x4010e501
	backingClose = 0x4004e502
)

// RegisterBacking registers fd as a backing file and returns the id for
// OpenOut.BackingID. Reads and writes of a file that was opened with it do not
// reach the Handler; they run with the credentials of the thread that registered
// fd. It needs CAP_SYS_ADMIN: linux fs/fuse/backing.c. The caller is a Handler or a
// function passed to Defer.
func (c *Conn) RegisterBacking(fd int) (int32, syscall.Errno) {
	m := fuse.BackingMap{Fd: int32(fd)}
	id, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd), backingOpen, uintptr(unsafe.Pointer(&m)))
	return int32(id), errno
}

// ReleaseBacking releases a backing file. Files that are open with it keep it.
func (c *Conn) ReleaseBacking(id int32) {
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd), backingClose, uintptr(unsafe.Pointer(&id)))
}

// device has the operations of /dev/fuse that a Conn uses. Unit tests substitute their own.
type device interface {
	// read returns one request; EAGAIN when none is queued.
	read(p []byte) (int, syscall.Errno)
	write(p []byte) error
	// wait returns when a request may be queued or the file system is unmounted.
	wait()
	// ready reports whether a request is queued.
	ready() bool
	yield()
}

// descriptor is a non-blocking descriptor of /dev/fuse.
type descriptor int

// read does not block, so it does not notify the Go scheduler.
func (d descriptor) read(p []byte) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(d), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
	return int(n), errno
}

func (d descriptor) write(p []byte) error {
	_, err := unix.Write(int(d), p)
	return err
}

func (d descriptor) wait() {
	_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(d), Events: unix.POLLIN}}, nil, nil)
}

func (d descriptor) ready() bool {
	n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(d), Events: unix.POLLIN}}, &unix.Timespec{}, nil)
	return n > 0 || err != nil
}

func (d descriptor) yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// Lines returns a logger that writes the messages of go-fuse as log records.
func Lines(to *slog.Logger) *log.Logger { return log.New(lines{to}, "", 0) }

type lines struct{ *slog.Logger }

func (l lines) Write(p []byte) (int, error) {
	l.Warn("fuse", "message", string(p))
	return len(p), nil
}
