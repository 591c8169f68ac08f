package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/tools/file/message"
)

// A Handler does one operation. ctx ends when the request is cancelled. The error is a
// *message.Error; any other is an internal one.
type Handler func(ctx context.Context, r *message.Request) (message.Reply, error)

// Main is the main function of the worker process, whose arguments are those of [message.Dirs]. It serves the standard streams and
// returns the exit status: 0 at the end of its input, 2 without arguments.
func Main() int {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "scopefs-files: no argument, the directory: scopefs starts this program in a sandbox")
		return 2
	}
	// The agent's other processes have the same user. The kernel closes the
	// /proc/PID/{fd,mem,...} of an undumpable process to them (proc(5), ptrace(2)).
	err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	if err == nil {
		_, _ = unix.FcntlInt(1, unix.F_SETPIPE_SZ, 512<<10) // fewer wake-ups for a long reply; it may fail
		err = confine()
	}
	if err == nil {
		err = Serve(0, 1, In(mounted(message.DirsOf(os.Args[1:]))))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scopefs-files:", err)
		return 1
	}
	return 0
}

// mounted returns the directories without a second name that the sandbox does not have: something else may be there.
func mounted(dirs message.Dirs) message.Dirs {
	if dirs.At == "" {
		return dirs
	}
	own, err := statAt(unix.AT_FDCWD, dirs.Own, 0)
	if at, errAt := statAt(unix.AT_FDCWD, dirs.At, 0); err != nil || errAt != nil || own.Dev != at.Dev || own.Ino != at.Ino {
		dirs.At = ""
	}
	return dirs
}

// server is the worker's end of the pipes. Its threads take turns: one reads a request,
// passes the baton to the next, handles the request and replies. So a request costs one
// wake-up here and one in the daemon.
type server struct {
	in     *peer.Reader // for the thread that holds the baton
	out    *peer.Writer
	handle Handler
	baton  baton
	ended  chan error     // the first error
	all    sync.WaitGroup // threads

	mu      sync.Mutex
	idle    int // threads that wait for the baton
	threads int
	cancels map[uint64]context.CancelFunc
}

// Serve reads requests from a blocking descriptor and handles them until its end.
func Serve(in, out int, h Handler) error {
	b, err := newBaton()
	if err != nil {
		return err
	}
	s := &server{in: peer.NewReader(descriptor(in), message.MaxFrame),
		out: peer.NewWriter(descriptor(out), message.MaxFrame, 0), handle: h, baton: b,
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

// stop cancels the requests in flight and waits a moment for them to undo unfinished
// changes.
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
	case <-time.After(message.StopTime / 2):
	}
}

// more starts a thread if none is idle: at most one a request in flight, and one that
// reads.
func (s *server) more() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle == 0 && s.threads <= message.MaxCalls || s.threads < 2 {
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
		var r *message.RequestFrame
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

// next reads the next request for a handler. It answers pings and cancels itself.
func (s *server) next() (*message.RequestFrame, context.Context, error) {
	for {
		r := new(message.RequestFrame)
		if err := message.Receive(s.in, r, &r.Args, &r.Blob); err != nil {
			return nil, nil, err
		}
		if r.Op == message.OpPing {
			if err := s.write(message.ReplyFrame{ID: r.ID}); err != nil {
				return nil, nil, err
			}
			continue
		}
		s.mu.Lock()
		if r.Op == message.OpCancel {
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

// answer handles a request on this thread and replies.
func (s *server) answer(ctx context.Context, r *message.RequestFrame) error {
	setThreadName(r.Call)
	result, err := s.handle(withName(ctx, r.Call), &r.Request)
	setThreadName("")
	s.mu.Lock()
	s.cancels[r.ID]()
	delete(s.cancels, r.ID)
	s.mu.Unlock()

	out := message.ReplyFrame{ID: r.ID, Reply: result}
	if err != nil {
		var e *message.Error
		if !errors.As(err, &e) {
			e = message.Errorf(message.Internal, "%v", err)
		}
		out.Reply = message.Reply{Error: e}
	}
	return s.write(out)
}

// write sends a reply in one piece.
func (s *server) write(out message.ReplyFrame) error {
	err := message.Send(s.out, &out, out.Result, out.Blob)
	if errors.Is(err, peer.ErrTooLarge) {
		out.Reply = message.Reply{Error: message.Errorf(message.TooLarge, "the result is larger than %d bytes", message.MaxFrame)}
		err = message.Send(s.out, &out, nil, nil)
	}
	return err
}
