package file

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/scopefs/scopefs/tools"
)

// errDied is the error of a request that the worker did not live to answer.
var errDied = errors.New("file worker ended")

// errSilent is the cause of the end of a worker that does not answer a ping.
var errSilent = errors.New("it does not answer")

// A worker with requests under way is pinged when it has said nothing for a
// while. It answers between two requests, whatever those wait for. Beats are
// counted, not time: a daemon that was stopped itself blames no worker.
const (
	beatPause = time.Second
	maxSilent = 5 // beats without a word
)

const (
	writeTimeout = 10 * time.Second // for one frame: the worker reads, whatever else it does
	keptStderr   = 4 << 10          // bytes
)

// pipes are the outer ends of a worker's streams, and what ends it.
type pipes struct {
	in       *os.File
	out, err *os.File
	kill     func()
	why      func() error // why it died, as far as it is known; may be nil
}

// conn is one process of a worker.
type conn struct {
	pipes
	slots chan struct{} // one a request under way
	dead  chan struct{} // closed when it is of no use any more
	done  sync.WaitGroup

	beatPause time.Duration

	writing sync.Mutex

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan answer
	beat    *time.Timer // runs while something waits
	silent  int         // beats since the worker's last word
	ping    uint64      // the id of the ping under way; 0: none
	cause   error
	said    []byte // the end of its stderr
}

func newConn(p pipes) *conn {
	c := &conn{pipes: p, slots: make(chan struct{}, maxCalls), dead: make(chan struct{}), beatPause: beatPause, waiting: map[uint64]chan answer{}}
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

// fail ends the process, once, for a reason.
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
		c.kill()
		c.in.Close()
	}
}

// close ends the process: at the end of its input it takes back what it has half
// done, and exits.
func (c *conn) close() error {
	c.in.Close()
	timer := time.AfterFunc(stopTimeout, func() { c.fail(errDied) })
	defer timer.Stop()
	c.done.Wait()
	c.fail(errDied)
	return errors.Join(ignoreClosed(c.out.Close()), ignoreClosed(c.err.Close()))
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// ended is the error of a request to a process that is gone.
func (c *conn) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := fmt.Errorf("%w: %w", errDied, c.cause)
	if len(c.said) > 0 {
		err = fmt.Errorf("%w: %q", err, c.said)
	}
	return err
}

// drain reads what the worker writes to its stderr, and keeps the end of it.
func (c *conn) drain() {
	for b := make([]byte, keptStderr); ; {
		n, err := c.err.Read(b)
		c.mu.Lock()
		c.said = append(c.said, b[:n]...)
		c.said = c.said[max(0, len(c.said)-keptStderr):]
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// listen hands answers to those who wait for them.
func (c *conn) listen() {
	for r := bufio.NewReaderSize(c.out, 64<<10); ; {
		var a answer
		var err error
		if a.blob, err = readFrame(r, &a); err == nil {
			err = c.deliver(a)
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.EOF
			}
			if c.why != nil && c.alive() {
				err = errors.Join(c.why(), err)
			}
			c.fail(err)
			return
		}
	}
}

func (c *conn) deliver(a answer) error {
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
		return fmt.Errorf("answer to %d, which was not asked", a.ID)
	}
	ch <- a
	return nil
}

// send writes one frame in one piece.
func (c *conn) send(b []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.in.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := c.in.Write(b)
	return err
}

// exchange asks and waits for the answer. When ctx ends the worker is told, and
// its answer, which says how far it came, is the answer.
func (c *conn) exchange(ctx context.Context, r request, blob []byte) (answer, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-c.dead:
		return answer{}, c.ended()
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
	if err := tools.Still(ctx); err != nil {
		return answer{}, err
	}
	ch := make(chan answer, 1)
	c.mu.Lock()
	c.last++
	r.ID = c.last
	c.waiting[r.ID] = ch
	if len(c.waiting) == 1 {
		c.silent = 0
		c.beat.Reset(c.beatPause)
	}
	c.mu.Unlock()
	b, err := frame(r, blob)
	if err != nil {
		c.forget(r.ID)
		return answer{}, tools.Errorf(tools.TooLarge, "the arguments are larger than %d bytes", maxFrame)
	}
	if err := c.send(b); err != nil {
		c.fail(err)
		return answer{}, c.ended()
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

// late returns an answer that came just before the end.
func (c *conn) late(ch chan answer) (answer, error) {
	select {
	case a := <-ch:
		return a, nil
	default:
		return answer{}, c.ended()
	}
}

func (c *conn) cancel(ctx context.Context, id uint64, ch chan answer) (answer, error) {
	if b, err := frame(request{ID: id, Op: opCancel}, nil); err == nil {
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
		return answer{}, ctx.Err()
	}
}

func (c *conn) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered(id)
}

// answered takes a request off the list. The caller holds c.mu.
func (c *conn) answered(id uint64) {
	delete(c.waiting, id)
	if len(c.waiting) == 0 {
		c.beat.Stop()
	}
}

// listenFor counts a beat of silence, and pings the worker.
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
		c.fail(errSilent)
	} else if ping {
		// Not on this goroutine, which a worker that does not read would hold.
		if b, err := frame(request{ID: id, Op: opPing}, nil); err == nil {
			go c.send(b)
		}
	}
}
