package egress

import (
	"cmp"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/interrupted"
)

// tunnel passes bytes between two sockets. While nothing moves it has two
// goroutines, and neither buffers nor pipes.
type tunnel struct {
	in, up    socket
	idle      time.Duration
	sent, got *atomic.Int64
	spend     func(int64) error // counts them, and ends the tunnel by its error
	moved     atomic.Int64      // when bytes moved last, in Unix nanoseconds
}

// run passes ahead and then everything, until both sides have ended, one fails,
// or nothing has moved for the idle time.
func (t *tunnel) run(ahead []byte) error {
	t.moved.Store(time.Now().UnixNano())
	if len(ahead) > 0 {
		_ = t.up.SetWriteDeadline(time.Now().Add(t.idle))
		n, err := t.up.Write(ahead)
		t.sent.Add(int64(n))
		err = errors.Join(err, t.spend(int64(n)))
		if err != nil {
			return err
		}
	}
	var back error
	var wait sync.WaitGroup
	wait.Go(func() { back = t.pump(t.in, t.up, t.got) })
	err := t.pump(t.up, t.in, t.sent)
	wait.Wait()
	for _, err := range []error{err, back} {
		if err != nil && !hungUp(err) {
			return err
		}
	}
	return nil
}

// hungUp reports whether a side has ended the connection without waiting for the
// other, which many programs do, or this process has closed it.
func hungUp(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ENOTCONN)
}

// pump moves bytes from src to dst until src ends, and then ends dst. An error
// ends both directions.
func (t *tunnel) pump(dst, src socket, count *atomic.Int64) (err error) {
	defer func() {
		if err != nil {
			t.in.Close()
			t.up.Close()
		}
	}()
	for {
		ready, err := t.await(src)
		if err == io.EOF {
			return dst.CloseWrite()
		} else if err != nil {
			return err
		}
		_ = dst.SetWriteDeadline(time.Now().Add(t.idle))
		n, err := io.CopyN(dst, src, int64(min(ready, maxMove))) // splice(2) between sockets
		count.Add(n)
		t.moved.Store(time.Now().UnixNano())
		if stop := t.spend(n); stop != nil {
			return stop
		}
		if err != nil {
			return err
		}
	}
}

// maxMove limits what moves before it is counted, in bytes.
const maxMove = 1 << 20

// await waits until src has bytes, and returns how many. Its error is io.EOF at src's
// end.
func (t *tunnel) await(src socket) (ready int, err error) {
	raw, err := src.SyscallConn()
	if err != nil {
		return 0, err
	}
	for {
		last := time.Unix(0, t.moved.Load())
		_ = src.SetReadDeadline(last.Add(t.idle))
		var found error
		err = raw.Read(func(fd uintptr) bool {
			found = peek(int(fd))
			if found == nil {
				ready, found = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
			}
			return found != unix.EAGAIN
		})
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Unix(0, t.moved.Load()).After(last) {
			continue // the other direction moves
		}
		return max(ready, 1), cmp.Or(err, found)
	}
}

// peek returns nil if a socket has bytes, io.EOF at its end, and EAGAIN before.
func peek(fd int) error {
	return interrupted.Retry(func() error {
		var one [1]byte
		n, _, err := unix.Recvfrom(fd, one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err == nil && n == 0 {
			return io.EOF
		}
		return err
	})
}
