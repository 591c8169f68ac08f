package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/tools"
)

// The bounds of a connection.
const (
	maxFrame  = 16 << 20        // bytes: a value of 1 MiB has up to 6 MiB as JSON
	maxCalls  = 64              // of each end, in flight
	sendTime  = 2 * time.Second // for one frame
	graceTime = time.Second     // for a call to end after it was cancelled
	maxCause  = 1 << 10         // bytes of a cause
	maxText   = 4 << 10         // bytes of a message or hint
)

// ErrLost is the error of a call whose other end is gone.
var ErrLost = errors.New("the other end is gone")

// head is the first part of a frame. A call has a method, a reply none.
type head struct {
	ID     uint64 `json:"id"`
	Method string `json:"method,omitempty"`
	Cancel bool   `json:"cancel,omitempty"` // ends a call; it gets its reply all the same
	Error  *fault `json:"error,omitempty"`
}

type reply struct {
	fault *fault
	value []byte
}

// Handlers are the methods of one end by name.
type Handlers map[string]func(ctx context.Context, value []byte) (any, error)

// A Conn is one end of a connection. Several goroutines may call.
type Conn struct {
	socket *os.File
	w      *peer.Writer
	calls  *peer.Requests[reply]
	slots  chan struct{} // held by the other end's calls

	mu       sync.Mutex
	handlers Handlers
	running  map[uint64]context.CancelFunc // the other end's calls
}

// NewConn returns an end on a socket, which must not block. It answers calls while Serve runs.
func NewConn(socket *os.File, handlers Handlers) *Conn {
	return &Conn{
		socket: socket, handlers: handlers, w: peer.NewWriter(socket, maxFrame, sendTime), calls: peer.NewRequests[reply](maxCalls),
		slots: make(chan struct{}, maxCalls), running: map[uint64]context.CancelFunc{},
	}
}

// Replace replaces the methods of this end.
func (c *Conn) Replace(handlers Handlers) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handlers = handlers
}

// Serve reads frames until the connection ends, and returns why. All calls have ended then, or end
// with their contexts.
func (c *Conn) Serve() error {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	r := peer.NewReader(c.socket, maxFrame)
	err := error(nil)
	for err == nil {
		var top, value []byte
		if err = r.Read(&top, &value); err == nil {
			err = c.frame(ctx, &all, top, value)
		}
	}
	c.calls.Close(errors.Join(ErrLost, err))
	c.socket.Close()
	cancel()
	all.Wait()
	return err
}

// Close ends the connection, and Serve.
func (c *Conn) Close() { c.socket.Close() }

// Responsive returns when the locks that calls need are free.
func (c *Conn) Responsive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls.Waiting()
}

// Lost returns a channel that is closed when the connection has ended.
func (c *Conn) Lost() <-chan struct{} { return c.calls.Closed() }

func (c *Conn) frame(ctx context.Context, all *sync.WaitGroup, top, value []byte) error {
	var h head
	if err := peer.Decode(top, &h); err != nil {
		return err
	}
	switch {
	case h.Cancel:
		c.mu.Lock()
		defer c.mu.Unlock()
		if cancel := c.running[h.ID]; cancel != nil {
			cancel()
		}
		return nil
	case h.Method == "":
		c.calls.Deliver(h.ID, reply{h.Error, value}) // nobody waits for it: the call was cancelled
		return nil
	}
	return c.begin(ctx, all, h, value)
}

// begin starts a call of the other end, which bounds its calls as we do.
func (c *Conn) begin(ctx context.Context, all *sync.WaitGroup, h head, value []byte) error {
	c.mu.Lock()
	handler := c.handlers[h.Method]
	c.mu.Unlock()
	if handler == nil {
		return fmt.Errorf("unknown method %.40q", h.Method)
	}
	select {
	case c.slots <- struct{}{}:
	default:
		return fmt.Errorf("more than %d calls at a time", maxCalls)
	}
	ctx, cancel := context.WithCancel(ctx)
	c.mu.Lock()
	_, twice := c.running[h.ID]
	c.running[h.ID] = cancel
	c.mu.Unlock()
	if twice {
		cancel()
		return fmt.Errorf("call %d is running", h.ID)
	}
	all.Go(func() {
		out, err := handler(ctx, value)
		c.mu.Lock()
		delete(c.running, h.ID)
		c.mu.Unlock()
		cancel()
		<-c.slots // before the reply: the other end counts the call until then
		c.respond(h.ID, out, err)
	})
	return nil
}

func (c *Conn) respond(id uint64, out any, err error) {
	h := head{ID: id}
	var value []byte
	if err == nil {
		value, err = json.Marshal(out)
	}
	if err != nil {
		h.Error, value = faultOf(err), nil
	}
	err = c.send(h, value)
	if errors.Is(err, peer.ErrTooLarge) {
		h.Error = faultOf(tools.Errorf(tools.TooLarge, "the result is too large"))
		err = c.send(h, nil)
	}
	if err != nil {
		c.socket.Close()
	}
}

func (c *Conn) send(h head, value []byte) error {
	top, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return c.w.Write(top, value)
}

// call makes a call and returns its result. When ctx ends, it cancels the call, and waits a second
// for the reply.
func (c *Conn) call(ctx context.Context, method string, value []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	call, err := c.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer call.End()
	if err := c.send(head{ID: call.ID, Method: method}, value); err != nil {
		if errors.Is(err, peer.ErrTooLarge) {
			return nil, tools.Errorf(tools.TooLarge, "the call is too large")
		}
		c.socket.Close() // a part of the frame may have been written
		return nil, errors.Join(ErrLost, err)
	}
	got, err := call.Wait(ctx, func() { _ = c.send(head{ID: call.ID, Cancel: true}, nil) }, graceTime)
	switch {
	case errors.Is(err, peer.ErrStuck):
		return nil, ctx.Err()
	case err != nil:
		return nil, err
	case got.fault != nil:
		return nil, got.fault.error()
	}
	return got.value, nil
}
