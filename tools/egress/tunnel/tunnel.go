// Package tunnel passes bytes between two sockets, through splice(2), and counts them.
package tunnel

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/interrupted"
)

// Socket is a connection that the kernel can splice. Its descriptor is non-blocking.
type Socket interface {
	syscall.Conn
	io.Closer
}

// Moved is what a tunnel has moved when it has ended.
type Moved struct {
	Sent, Got int64         // bytes, from In to Up and back
	Took      time.Duration // since it began
}

// Tunnel is a pair of sockets. While nothing moves it has two goroutines, and neither buffers nor pipes.
type Tunnel struct {
	In, Up    Socket
	Idle      time.Duration // the time without a byte in either direction after which it ends
	Purse     *Purse        // has the bytes that it may move
	Pipes     *Pipes
	Sent, Got atomic.Int64 // what has moved, from In to Up and back

	moved   atomic.Int64 // when bytes moved last, in Unix nanoseconds
	late    atomic.Bool  // the idle time has ended it
	lingers atomic.Int32 // see linger
	end     sync.Once
	over    chan struct{} // closed by End
}

// New returns a tunnel that has not begun.
func New(in, up Socket, idle time.Duration, purse *Purse, pipes *Pipes) *Tunnel {
	return &Tunnel{In: in, Up: up, Idle: idle, Purse: purse, Pipes: pipes, over: make(chan struct{})}
}

// Run moves bytes until both sides have ended, one fails, nothing has moved for the idle time, or End. It closes the sockets.
// The error is nil at the end of a side, and after End.
func (t *Tunnel) Run() error {
	defer t.End()
	in, err := t.In.SyscallConn()
	if err != nil {
		return err
	}
	up, err := t.Up.SyscallConn()
	if err != nil {
		return err
	}
	t.moved.Store(time.Now().UnixNano())
	defer t.watch()()
	var back error
	var wait sync.WaitGroup
	wait.Go(func() { back = t.answer(in, up) })
	err = t.send(up, in)
	wait.Wait()
	for _, err := range []error{err, back} {
		if err != nil && !HungUp(err) {
			return err
		}
	}
	if t.late.Load() {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// send moves what the client sends. A host that takes no more may have answered. The rest is then read and dropped: a
// socket that is closed with unread bytes resets the connection, and the client may lose the answer (RFC 9112, section
// 9.6).
func (t *Tunnel) send(up, in syscall.RawConn) error {
	at, err := t.pump(up, in, &t.Sent)
	if at == up && HungUp(err) {
		t.linger()
		for err = nil; err == nil; {
			if _, err = t.await(in); err == nil {
				err = in.Control(func(fd uintptr) { _, _ = receive(int(fd), 0) })
			}
		}
		return nil
	}
	if err != nil {
		t.End()
	}
	return err
}

// answer moves what the host sends. A host that resets the connection may have answered: the client gets that first.
func (t *Tunnel) answer(in, up syscall.RawConn) error {
	at, err := t.pump(in, up, &t.Got)
	if at == up && HungUp(err) {
		t.linger()
		err = t.finish(in)
	}
	if t.linger(); err != nil {
		t.End()
	}
	return err
}

// Lingering is how long a client is read that still sends when its host has answered and has gone.
const Lingering = 2 * time.Second

// linger ends the tunnel soon when it is called for the second time: the host has gone, and its answer has passed.
func (t *Tunnel) linger() {
	if t.lingers.Add(1) == 2 {
		time.AfterFunc(Lingering, t.End)
	}
}

// watch ends the tunnel when nothing has moved for the idle time. One timer costs less than deadlines of each wait.
func (t *Tunnel) watch() (stop func()) {
	var timer *time.Timer
	armed := make(chan struct{})
	timer = time.AfterFunc(t.Idle, func() {
		<-armed
		if left := t.Idle - time.Since(time.Unix(0, t.moved.Load())); left > 0 {
			timer.Reset(left)
			return
		}
		t.late.Store(true)
		t.End()
	})
	close(armed)
	return func() { timer.Stop() }
}

// End ends the tunnel.
func (t *Tunnel) End() {
	t.end.Do(func() {
		close(t.over)
		t.In.Close()
		t.Up.Close()
	})
}

// HungUp reports whether a side has ended the connection without waiting for the
// other, which many programs do, or this process has closed it.
func HungUp(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ENOTCONN)
}

// pump moves bytes from src to dst until src ends, and then ends dst. After an error of one of them, at is that one.
func (t *Tunnel) pump(dst, src syscall.RawConn, count *atomic.Int64) (at syscall.RawConn, err error) {
	for {
		ready, err := t.await(src)
		if err == io.EOF {
			return dst, t.finish(dst)
		} else if err != nil {
			return src, err
		}
		may, back, err := t.Purse.take(int64(ready), t.over)
		if err != nil {
			return nil, err
		}
		n, at, err := t.move(dst, src, may)
		back(may - n)
		count.Add(n)
		t.moved.Store(time.Now().UnixNano())
		if err != nil {
			return at, err
		}
	}
}

// MaxMove limits what moves before it is counted, in bytes.
const MaxMove = 1 << 20

// await waits until src has bytes, and returns how many, up to MaxMove. Its error is io.EOF at src's end.
func (t *Tunnel) await(src syscall.RawConn) (ready int, err error) {
	var found error
	err = src.Read(func(fd uintptr) bool {
		if ready, found = receive(int(fd), unix.MSG_PEEK); ready == 0 && found == nil {
			found = io.EOF
		}
		return found != unix.EAGAIN
	})
	if err != nil {
		return 0, t.wait(err)
	}
	return ready, found
}

// receive looks at or drops the bytes that a socket has, and returns how many, up to MaxMove.
func receive(fd, flags int) (n int, err error) {
	err = interrupted.Retry(func() error {
		n, _, err = unix.Recvfrom(fd, nowhere[:], flags|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		return err
	})
	return n, err
}

// nowhere is for receive: with MSG_TRUNC TCP copies nothing to it, tcp(7). A Unix socket copies what nobody reads.
var nowhere [MaxMove]byte

// wait returns the error of a wait for a socket: net.ErrClosed for one that End has closed, which os.File has no error for.
func (t *Tunnel) wait(err error) error {
	select {
	case <-t.over:
		return net.ErrClosed
	default:
		return err
	}
}

// finish ends a direction.
func (t *Tunnel) finish(dst syscall.RawConn) error {
	var shut error
	if err := dst.Control(func(fd uintptr) { shut = unix.Shutdown(int(fd), unix.SHUT_WR) }); err != nil {
		return t.wait(err)
	}
	return os.NewSyscallError("shutdown", shut)
}

// move moves what src has, up to may bytes, and returns how many dst has taken. After an error of one of them, at is
// that one.
func (t *Tunnel) move(dst, src syscall.RawConn, may int64) (n int64, at syscall.RawConn, err error) {
	p, err := t.Pipes.take()
	if err != nil {
		return 0, nil, err
	}
	for n < may {
		in, err := t.fill(p, src, may-n)
		if err != nil {
			p.close()
			return n, src, err
		}
		if in == 0 {
			break
		}
		out, err := t.drain(dst, p, in)
		n += out
		if err != nil {
			p.close() // bytes are in it
			return n, dst, err
		}
	}
	t.Pipes.put(p)
	return n, nil, nil
}

// fill moves bytes into a pipe. It returns 0 when there are no more.
func (t *Tunnel) fill(p pipe, src syscall.RawConn, most int64) (n int64, err error) {
	var failed error
	err = src.Control(func(fd uintptr) { n, failed = splice(p.w, int(fd), most) })
	switch {
	case err != nil:
		return 0, t.wait(err)
	case failed == unix.EAGAIN:
		return 0, nil
	}
	return n, os.NewSyscallError("splice", failed)
}

// drain moves the n bytes of a pipe out of it, and waits for dst.
func (t *Tunnel) drain(dst syscall.RawConn, p pipe, n int64) (moved int64, err error) {
	var failed error
	err = dst.Write(func(fd uintptr) bool {
		for failed = nil; moved < n && failed == nil; {
			var m int64
			m, failed = splice(int(fd), p.r, n-moved)
			if moved += m; m == 0 && failed == nil {
				failed = io.ErrUnexpectedEOF // the pipe has less than it took
			}
		}
		return failed != unix.EAGAIN
	})
	if err != nil {
		return moved, t.wait(err)
	}
	return moved, failed
}
