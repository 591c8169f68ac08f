package tree

import (
	"cmp"
	"context"
	"encoding/binary"
	"io"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/thread"
)

// setThreadName names the calling thread after a call's id. The goroutine must be
// locked to the thread. Without a call the thread has the name of the program, which no call has.
func setThreadName(call string) { thread.Name(cmp.Or(call, "scopefs-files")) }

type nameKey struct{}

// withName returns a context with the name for Helpers.
func withName(ctx context.Context, call string) context.Context {
	return context.WithValue(ctx, nameKey{}, call)
}

// Helpers calls f on n further threads that have the name of the request's thread.
func Helpers(ctx context.Context, n int, f func()) *sync.WaitGroup {
	call, _ := ctx.Value(nameKey{}).(string)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			setThreadName(call)
			defer setThreadName("")
			f()
		})
	}
	return &all
}

// descriptor reads and writes a blocking descriptor in the calling thread, without the
// runtime's poller.
type descriptor int

func (d descriptor) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(d), b)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, err
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

func (d descriptor) Write(b []byte) (n int, err error) {
	for n < len(b) {
		m, err := unix.Write(int(d), b[n:])
		if err != nil && err != unix.EINTR {
			return n, err
		}
		n += max(m, 0)
	}
	return n, nil
}

// baton is held by one thread at a time. It is a semaphore of the kernel (eventfd(2)):
// the kernel wakes the thread directly, while the Go runtime wakes a goroutine that is
// locked to its thread through another thread.
type baton int

func newBaton() (baton, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_SEMAPHORE)
	return baton(fd), err
}

func (b baton) take() error {
	var one [8]byte
	_, err := descriptor(b).Read(one[:])
	return err
}

func (b baton) pass() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = descriptor(b).Write(one[:]) // cannot be full
}
