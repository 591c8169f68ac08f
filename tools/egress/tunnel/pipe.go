package tunnel

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/interrupted"
)

// Pipes are the pipes of tunnels through which nothing passes now. A tunnel has one while it moves bytes.
type Pipes struct {
	mu   sync.Mutex
	free []pipe
}

const (
	pipeSize = 1 << 20 // bytes; what the kernel refuses, pipe(7), is an ordinary pipe
	maxFree  = 16      // of Pipes
)

// pipe is an empty pipe.
type pipe struct{ r, w int }

func (p *Pipes) take() (pipe, error) {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		one := p.free[n-1]
		p.free = p.free[:n-1]
		p.mu.Unlock()
		return one, nil
	}
	p.mu.Unlock()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return pipe{}, os.NewSyscallError("pipe2", err)
	}
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize)
	return pipe{fds[0], fds[1]}, nil
}

func (p *Pipes) put(one pipe) {
	p.mu.Lock()
	keep := len(p.free) < maxFree
	if keep {
		p.free = append(p.free, one)
	}
	p.mu.Unlock()
	if !keep {
		one.close()
	}
}

func (p pipe) close() {
	unix.Close(p.r)
	unix.Close(p.w)
}

// splice moves bytes between a pipe and a socket, and does not wait.
func splice(to, from int, most int64) (n int64, err error) {
	err = interrupted.Retry(func() (err error) {
		n, err = unix.Splice(from, nil, to, nil, int(most), unix.SPLICE_F_NONBLOCK)
		return err
	})
	return max(n, 0), err
}
