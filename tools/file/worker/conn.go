package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file/message"
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
	calls *peer.Requests[message.Reply]
	out   *peer.Writer
	done  sync.WaitGroup

	beatPause time.Duration

	mu     sync.Mutex
	beat   *time.Timer
	beats  bool   // the timer runs, from the first request in flight until none is
	silent int    // beats since the last message
	ping   uint64 // the id of the ping in flight; 0: none
	said   []byte // the end of its stderr
}

func newConn(p Pipes, beat time.Duration) *conn {
	c := &conn{Pipes: p, calls: peer.NewRequests[message.Reply](message.MaxCalls),
		out: peer.NewWriter(p.In, message.MaxFrame, writeTimeout), beatPause: cmp.Or(beat, beatPause)}
	c.beat = time.AfterFunc(time.Hour, c.listenFor)
	c.beat.Stop()
	c.done.Go(c.listen)
	c.done.Go(c.drain)
	return c
}

func (c *conn) alive() bool { return c.calls.Err() == nil }

// fail kills the process. The first cause counts.
func (c *conn) fail(cause error) {
	if c.calls.Close(cause) {
		c.Kill()
		c.In.Close()
	}
}

// close ends the process. At the end of its input it undoes unfinished changes and
// exits.
func (c *conn) close() error {
	c.In.Close()
	timer := time.AfterFunc(message.StopTime, func() { c.fail(ErrDied) })
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
	err := fmt.Errorf("%w: %w", ErrDied, c.calls.Err())
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
	for in := peer.NewReader(c.Out, message.MaxFrame); ; {
		var a message.ReplyFrame
		err := message.Receive(in, &a, &a.Result, &a.Blob)
		if err == nil {
			err = c.deliver(&a)
		}
		if err != nil {
			if c.Why != nil && c.alive() {
				err = errors.Join(c.Why(), err)
			}
			c.fail(err)
			return
		}
	}
}

func (c *conn) deliver(a *message.ReplyFrame) error {
	c.mu.Lock()
	c.silent = 0
	pong := a.ID == c.ping && a.ID != 0
	if pong {
		c.ping = 0
	}
	c.mu.Unlock()
	if !pong && !c.calls.Deliver(a.ID, a.Reply) {
		return fmt.Errorf("reply to %d, which is no request in flight", a.ID)
	}
	return nil
}

// exchange sends a request and waits for its reply. When ctx ends, it sends a cancel:
// the reply then says how far the worker came.
func (c *conn) exchange(ctx context.Context, r message.Request) (message.Reply, error) {
	call, err := c.calls.Begin(ctx)
	if err != nil {
		if !c.alive() {
			err = c.ended()
		}
		return message.Reply{}, err
	}
	defer call.End()
	if err := tools.Still(ctx); err != nil {
		return message.Reply{}, err
	}
	c.watch()
	switch err := c.send(message.RequestFrame{ID: call.ID, Request: r}); {
	case errors.Is(err, peer.ErrTooLarge):
		return message.Reply{}, tools.Errorf(tools.TooLarge, "the arguments are larger than %d bytes", message.MaxFrame)
	case err != nil:
		c.fail(err)
		return message.Reply{}, c.ended()
	}
	reply, err := call.Wait(ctx, func() {
		if err := c.send(message.RequestFrame{ID: call.ID, Request: message.Request{Op: message.OpCancel}}); err != nil {
			c.fail(err)
		}
	}, message.StopTime)
	switch {
	case errors.Is(err, peer.ErrStuck):
		c.fail(err)
		return message.Reply{}, ctx.Err()
	case err != nil:
		return message.Reply{}, c.ended()
	}
	return reply, nil
}

func (c *conn) send(r message.RequestFrame) error { return message.Send(c.out, &r, r.Args, r.Blob) }

// watch starts the beats. The caller has a request in flight.
func (c *conn) watch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.beats {
		c.beats, c.silent = true, 0
		c.beat.Reset(c.beatPause)
	}
}

// listenFor counts a beat of silence, and pings the process.
func (c *conn) listenFor() {
	c.mu.Lock()
	if !c.alive() || c.calls.Waiting() == 0 {
		c.beats = false
		c.mu.Unlock()
		return
	}
	c.silent++
	dead, ping := c.silent > maxSilent, c.ping == 0
	if !dead {
		c.beat.Reset(c.beatPause)
	}
	if ping {
		c.ping = c.calls.NextID()
	}
	id := c.ping
	c.mu.Unlock()
	if dead {
		c.fail(ErrSilent)
	} else if ping {
		// On a goroutine of its own: a process that does not read blocks the write.
		go func() { _ = c.send(message.RequestFrame{ID: id, Request: message.Request{Op: message.OpPing}}) }() // without an answer, silence grows
	}
}
