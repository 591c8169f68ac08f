package file

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Work is the main function of the worker process. It returns the exit status: 0
// when its input has ended. A program calls it when its first argument is
// WorkerArg, before it does anything else.
func Work() int {
	// Not dumpable: /proc/PID/{fd,mem,...} are closed to the agent's other
	// processes, which have the same user (proc(5), ptrace(2)).
	err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	if err == nil {
		unix.FcntlInt(1, unix.F_SETPIPE_SZ, 512<<10) // fewer turns for a long answer; it may be refused
		err = serve(0, 1, sandbox.Workspace)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scopefs file worker:", err)
		return 1
	}
	return 0
}

// server is the worker's end. Its threads take turns: one reads, hands the baton
// to the next, handles what it has read itself, and answers. So a call costs one
// wake-up here, and the one of the daemon.
type server struct {
	in    *bufio.Reader // whose holder has the baton
	out   int
	root  string
	baton baton
	ended chan error     // why, once
	all   sync.WaitGroup // threads

	writing sync.Mutex

	mu      sync.Mutex
	idle    int // threads that wait for the baton
	threads int
	cancels map[uint64]context.CancelFunc
}

// serve answers requests from a blocking descriptor until its end.
func serve(in, out int, root string) error {
	b, err := newBaton()
	if err != nil {
		return err
	}
	s := &server{in: bufio.NewReaderSize(descriptor(in), 64<<10), out: out, root: root, baton: b,
		ended: make(chan error, 1), cancels: map[uint64]context.CancelFunc{}}
	s.more()
	s.more()
	s.baton.pass()
	err = <-s.ended
	s.stop()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// stop cancels what is under way and gives it a moment to take back what it has
// half done.
func (s *server) stop() {
	s.mu.Lock()
	for _, cancel := range s.cancels {
		cancel()
	}
	s.mu.Unlock()
	over := make(chan struct{})
	go func() {
		s.all.Wait()
		unix.Close(int(s.baton))
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(stopTimeout / 2):
	}
}

// more starts a thread, unless there are as many as there can be requests, and
// one that reads.
func (s *server) more() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle == 0 && s.threads <= maxCalls || s.threads < 2 {
		s.threads++
		s.idle++
		s.all.Go(s.thread)
	}
}

func (s *server) thread() {
	runtime.LockOSThread() // its name is the call's
	for {
		err := s.baton.take()
		s.count(-1)
		var r *asked
		var ctx context.Context
		if err == nil {
			r, ctx, err = s.next()
		}
		if err == nil {
			s.more()
			s.baton.pass()
			err = s.answer(ctx, r)
		} else {
			s.baton.pass() // the next meets the same end
		}
		if err != nil {
			s.end(err)
			return
		}
		s.count(1)
	}
}

func (s *server) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle += n
}

func (s *server) end(err error) {
	select {
	case s.ended <- err:
	default:
	}
}

// next reads until there is something to do.
func (s *server) next() (*asked, context.Context, error) {
	for {
		r := new(asked)
		var err error
		if r.blob, err = readFrame(s.in, r); err != nil {
			return nil, nil, err
		}
		if r.Op == opPing {
			if err := s.write(reply{ID: r.ID, Result: struct{}{}}, nil); err != nil {
				return nil, nil, err
			}
			continue
		}
		s.mu.Lock()
		if r.Op == opCancel {
			if cancel := s.cancels[r.ID]; cancel != nil {
				cancel()
			}
			s.mu.Unlock()
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		s.cancels[r.ID] = cancel
		s.mu.Unlock()
		return r, ctx, nil
	}
}

// answer handles a request on this thread.
func (s *server) answer(ctx context.Context, r *asked) error {
	setThreadName(r.Call)
	result, blob, err := handle(withName(ctx, r.Call), s.root, r)
	setThreadName("")
	s.mu.Lock()
	s.cancels[r.ID]()
	delete(s.cancels, r.ID)
	s.mu.Unlock()

	out := reply{ID: r.ID, Result: result}
	if err != nil {
		out.Result, blob = nil, nil
		var e *tools.Error
		if !errors.As(err, &e) {
			e = tools.Errorf(tools.Internal, "%v", err)
		}
		out.Error = e
	}
	return s.write(out, blob)
}

// write sends a reply, in one piece.
func (s *server) write(out reply, blob []byte) error {
	b, err := frame(out, blob)
	if errors.Is(err, errFrame) {
		b, err = frame(reply{ID: out.ID, Error: tools.Errorf(tools.TooLarge, "the result is larger than %d bytes", maxFrame)}, nil)
	}
	if err != nil {
		return err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	return writeAll(s.out, b)
}
