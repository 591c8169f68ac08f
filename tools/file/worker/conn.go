package worker

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/scopefs/scopefs/tools"
)

// ErrDied is the error of a request whose process died before it replied.
var ErrDied = errors.New("file worker ended")

// ErrSilent is the error of requests to a process that was killed because it did not
// answer pings.
var ErrSilent = errors.New("it does not answer")

// A process with requests in flight is pinged when it has sent nothing for a beat. Its
// reading thread answers, whatever the requests wait for. The daemon counts beats, not
// time, so that a daemon that was stopped itself kills no worker.
const (
	beatPause = time.Second
	maxSilent = 5 // beats without a message
)

const (
	writeTimeout = 10 * time.Second // for one frame: one thread of the worker always reads
	keptStderr   = 4 << 10          // bytes
)

// Pipes are the daemon's ends of a process's streams. They must not block, so that
// deadlines and Close end a Read or Write.
type Pipes struct {
	In, Out, Err *os.File

	Kill func()       // ends the process and closes the streams
	Why  func() error // why the process died, or nil; may be nil
}

// conn is one worker process.
type conn struct {
	Pipes
	slots chan struct{} // one a request in flight
	dead  chan struct{} // closed when the process is dead or given up
	done  sync.WaitGroup

	beatPause time.Duration

	writing sync.Mutex

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan Reply
	beat    *time.Timer // runs while requests are in flight
	silent  int         // beats since the last message
	ping    uint64      // the id of the ping in flight; 0: none
	cause   error
	said    []byte // the end of its stderr
}

func newConn(p Pipes, beat time.Duration) *conn {
	c := &conn{Pipes: p, slots: make(chan struct{}, maxCalls), dead: make(chan struct{}), beatPause: cmp.Or(beat, beatPause), waiting: map[uint64]chan Reply{}}
	c.beat = time.AfterFunc(time.Hour, c.listenFor)
	c.beat.Stop()
	c.done.Go(c.listen)
	c.done.Go(c.drain)
	return c
}

func (c *conn) alive() bool {
	select {
	case <-c.dead:
		return false
	default:
		return true
	}
}

// fail kills the process. The first cause counts.
func (c *conn) fail(cause error) {
	c.mu.Lock()
	first := c.cause == nil
	if first {
		c.cause = cause
		close(c.dead)
		c.beat.Stop()
	}
	c.mu.Unlock()
	if first {
		c.Kill()
		c.In.Close()
	}
}

// close ends the process. At the end of its input it undoes unfinished changes and
// exits.
func (c *conn) close() error {
	c.In.Close()
	timer := time.AfterFunc(stopTimeout, func() { c.fail(ErrDied) })
	defer timer.Stop()
	c.done.Wait()
	c.fail(ErrDied)
	return errors.Join(ignoreClosed(c.Out.Close()), ignoreClosed(c.Err.Close()))
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// ended returns the error of a request to a dead process.
func (c *conn) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := fmt.Errorf("%w: %w", ErrDied, c.cause)
	if len(c.said) > 0 {
		err = fmt.Errorf("%w: %q", err, c.said)
	}
	return err
}

// drain reads the process's stderr and keeps its end.
func (c *conn) drain() {
	for b := make([]byte, keptStderr); ; {
		n, err := c.Err.Read(b)
		c.mu.Lock()
		c.said = append(c.said, b[:n]...)
		c.said = c.said[max(0, len(c.said)-keptStderr):]
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// listen reads replies and delivers them until the process dies.
func (c *conn) listen() {
	for r := bufio.NewReaderSize(c.Out, 64<<10); ; {
		var a reply
		var err error
		if a.Result, a.Blob, err = readFrame(r, &a); err == nil {
			err = c.deliver(&a)
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.EOF
			}
			if c.Why != nil && c.alive() {
				err = errors.Join(c.Why(), err)
			}
			c.fail(err)
			return
		}
	}
}

func (c *conn) deliver(a *reply) error {
	c.mu.Lock()
	c.silent = 0
	pong := a.ID == c.ping && a.ID != 0
	if pong {
		c.ping = 0
	}
	ch := c.waiting[a.ID]
	c.answered(a.ID)
	c.mu.Unlock()
	if pong {
		return nil
	}
	if ch == nil {
		return fmt.Errorf("reply to %d, which is no request in flight", a.ID)
	}
	ch <- a.Reply
	return nil
}

// send writes one frame in one piece.
func (c *conn) send(b []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.In.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := c.In.Write(b)
	return err
}

// exchange sends a request and waits for its reply. When ctx ends, it sends a cancel:
// the reply then says how far the worker came.
func (c *conn) exchange(ctx context.Context, req Request) (Reply, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-c.dead:
		return Reply{}, c.ended()
	case <-ctx.Done():
		return Reply{}, ctx.Err()
	}
	if err := tools.Still(ctx); err != nil {
		return Reply{}, err
	}
	ch := make(chan Reply, 1)
	c.mu.Lock()
	c.last++
	r := request{c.last, req}
	c.waiting[r.ID] = ch
	if len(c.waiting) == 1 {
		c.silent = 0
		c.beat.Reset(c.beatPause)
	}
	c.mu.Unlock()
	b, err := r.frame()
	if err != nil {
		c.forget(r.ID)
		return Reply{}, tools.Errorf(tools.TooLarge, "the arguments are larger than %d bytes", maxFrame)
	}
	if err := c.send(b); err != nil {
		c.fail(err)
		return Reply{}, c.ended()
	}
	select {
	case a := <-ch:
		return a, nil
	case <-c.dead:
		return c.late(ch)
	case <-ctx.Done():
		return c.cancel(ctx, r.ID, ch)
	}
}

// late returns a reply that came just before the end.
func (c *conn) late(ch chan Reply) (Reply, error) {
	select {
	case a := <-ch:
		return a, nil
	default:
		return Reply{}, c.ended()
	}
}

func (c *conn) cancel(ctx context.Context, id uint64, ch chan Reply) (Reply, error) {
	if b, err := (&request{id, Request{Op: opCancel}}).frame(); err == nil {
		if err := c.send(b); err != nil {
			c.fail(err)
		}
	}
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case a := <-ch:
		return a, nil
	case <-c.dead:
		return c.late(ch)
	case <-timer.C:
		c.fail(errors.New("a request did not end when it was cancelled"))
		return Reply{}, ctx.Err()
	}
}

func (c *conn) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered(id)
}

// answered removes a request from the table. The caller holds c.mu.
func (c *conn) answered(id uint64) {
	delete(c.waiting, id)
	if len(c.waiting) == 0 {
		c.beat.Stop()
	}
}

// listenFor counts a beat of silence, and pings the process.
func (c *conn) listenFor() {
	c.mu.Lock()
	if c.cause != nil || len(c.waiting) == 0 {
		c.mu.Unlock()
		return
	}
	c.silent++
	dead, ping := c.silent > maxSilent, c.ping == 0
	if !dead {
		c.beat.Reset(c.beatPause)
	}
	if ping {
		c.last++
		c.ping = c.last
	}
	id := c.ping
	c.mu.Unlock()
	if dead {
		c.fail(ErrSilent)
	} else if ping {
		// On a goroutine of its own: a process that does not read blocks the write.
		if b, err := (&request{id, Request{Op: opPing}}).frame(); err == nil {
			go c.send(b)
		}
	}
}
