package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/cmd/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// ErrNoDaemon is the error of a run directory in which no daemon answers.
var ErrNoDaemon = errors.New("no daemon is running")

// Error is what a daemon answered.
type Error struct{ apiError }

func (e *Error) Error() string { return e.Text }

// NotFound and NotExecutable tell why a command did not start.
func (e *Error) NotFound() bool { return e.Kind == kindNotFound }

// NotExecutable reports that the command is there and cannot be run.
func (e *Error) NotExecutable() bool { return e.Kind == kindNotExecutable }

// Invalid reports that what was asked makes no sense, as bad usage does.
func (e *Error) Invalid() bool { return e.Kind == kindInvalid }

// Client speaks with the daemon of a run directory.
type Client struct {
	socket string
}

// NewClient returns a client; it connects when it is used.
func NewClient(p config.Paths) *Client { return &Client{socket: p.Socket()} }

func (c *Client) dial(ctx context.Context) (*net.UnixConn, error) {
	conn, err := connect(ctx, c.socket)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, fmt.Errorf("%w at %s: start one with scopefs daemon", ErrNoDaemon, c.socket)
	}
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// attended returns a context that ends, with the reason as its cause, when the
// daemon does not answer any more.
func (c *Client) attended(ctx context.Context) (context.Context, func()) {
	ctx, end := context.WithCancelCause(ctx)
	go NewPulse(c.socket).Watch(ctx, end)
	return ctx, func() { end(nil) }
}

// request sends one request; the connection is the caller's. ctx is attended.
func (c *Client) request(ctx context.Context, method, path string, in any) (*net.UnixConn, *bufio.Reader, *http.Response, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	r, resp, err := roundTrip(ctx, conn, method, path, in)
	if err != nil {
		conn.Close()
		return nil, nil, nil, whyNoAnswer(ctx, err)
	}
	return conn, r, resp, nil
}

func roundTrip(ctx context.Context, conn net.Conn, method, path string, in any) (*bufio.Reader, *http.Response, error) {
	text, err := json.Marshal(in)
	if err != nil {
		return nil, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://scopefs"+path, bytes.NewReader(text))
	if err == nil {
		err = req.Write(conn)
	}
	if err != nil {
		return nil, nil, err
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, req)
	if err == nil && resp.StatusCode >= 400 {
		err = readError(resp)
	}
	return r, resp, err
}

// whyNoAnswer returns why there is no answer: the daemon refused, does not answer
// any more, or ended.
func whyNoAnswer(ctx context.Context, err error) error {
	var refused *Error
	switch {
	case errors.As(err, &refused):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("the daemon has ended before it answered: whether it did what was asked is unknown: %w", err)
}

func readError(resp *http.Response) error {
	defer resp.Body.Close()
	e := &Error{}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(&e.apiError); err != nil || e.Text == "" {
		return fmt.Errorf("daemon: %s", resp.Status)
	}
	return e
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	ctx, end := c.attended(ctx)
	defer end()
	conn, _, resp, err := c.request(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxReply)).Decode(out); err != nil {
		return whyNoAnswer(ctx, err)
	}
	return nil
}

// Agents lists what is defined and mounted.
func (c *Client) Agents(ctx context.Context) ([]Agent, error) {
	var list []Agent
	err := c.call(ctx, http.MethodGet, "/v1/agents", struct{}{}, &list)
	return list, err
}

// Up mounts an agent's view and returns where.
func (c *Client) Up(ctx context.Context, id scope.ID, at string) (string, error) {
	var done UpRequest
	err := c.call(ctx, http.MethodPost, "/v1/agents/"+string(id)+"/up", UpRequest{At: at}, &done)
	return done.At, err
}

// Down ends an agent's sandboxes and unmounts its view.
func (c *Client) Down(ctx context.Context, id scope.ID) error {
	return c.call(ctx, http.MethodPost, "/v1/agents/"+string(id)+"/down", struct{}{}, &struct{}{})
}

// Reload has the daemon read the definitions again.
func (c *Client) Reload(ctx context.Context) ([]Reloaded, error) {
	var all []Reloaded
	err := c.call(ctx, http.MethodPost, "/v1/reload", struct{}{}, &all)
	return all, err
}

// Run is a command that runs in an agent's sandbox.
type Run struct {
	// Stdin, Stdout and Stderr are the outer ends of its pipes, or TTY is that
	// of its terminal. They are the caller's to close.
	Stdin, Stdout, Stderr, TTY *os.File

	why   func() error // why the daemon does not answer; nil while it does
	leave func()

	mu   sync.Mutex
	conn *net.UnixConn
	in   *bufio.Scanner
}

// Run starts a command. Closing the Run kills it.
func (c *Client) Run(ctx context.Context, id scope.ID, req RunRequest) (*Run, error) {
	attended, end := c.attended(ctx)
	conn, buffered, _, err := c.request(attended, http.MethodPost, "/v1/agents/"+string(id)+"/run", req)
	if err != nil {
		end()
		return nil, err
	}
	stop := context.AfterFunc(attended, func() { conn.Close() })
	r := &Run{conn: conn, in: bufio.NewScanner(conn), why: func() error { return context.Cause(attended) }, leave: func() { stop(); end() }}
	if buffered.Buffered() > 0 {
		r.Close()
		return nil, errors.New("daemon spoke out of turn")
	}
	if err := r.receiveFiles(req.TTY != nil); err != nil {
		r.Close()
		return nil, whyNoAnswer(attended, err)
	}
	return r, nil
}

func (r *Run) receiveFiles(tty bool) error {
	if err := r.send(toRun{Go: true}); err != nil {
		return err
	}
	line, oob := make([]byte, 256), make([]byte, unix.CmsgSpace(3*4))
	_, n, _, _, err := r.conn.ReadMsgUnix(line, oob)
	if err != nil {
		return err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return errors.New("daemon sent no files")
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return err
	}
	var files []*os.File
	for _, fd := range fds {
		unix.CloseOnExec(fd)
		files = append(files, os.NewFile(uintptr(fd), "stream"))
	}
	switch {
	case tty && len(files) == 1:
		r.TTY = files[0]
	case !tty && len(files) == 3:
		r.Stdin, r.Stdout, r.Stderr = files[0], files[1], files[2]
	default:
		return errors.New("daemon sent the wrong files")
	}
	return nil
}

func (r *Run) send(msg toRun) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return json.NewEncoder(r.conn).Encode(msg)
}

// Signal sends a signal to the command's foreground.
func (r *Run) Signal(sig unix.Signal) error { return r.send(toRun{Signal: int(sig)}) }

// Resize tells the command's terminal its size.
func (r *Run) Resize(size sandbox.Size) error { return r.send(toRun{Size: &size}) }

// Wait returns how the command ended.
func (r *Run) Wait() (RunExit, error) {
	for r.in.Scan() {
		var msg fromRun
		if err := json.Unmarshal(r.in.Bytes(), &msg); err != nil {
			return RunExit{}, err
		}
		switch {
		case msg.Exit != nil:
			return *msg.Exit, nil
		case msg.Error != nil:
			return RunExit{}, &Error{*msg.Error}
		}
	}
	if err := r.why(); err != nil {
		return RunExit{}, fmt.Errorf("%w; the command may still be running", err)
	}
	return RunExit{}, errors.New("the daemon is gone, and the sandbox with it")
}

// End ends the command's sandbox, with all that it left running, and returns
// when that is gone.
func (r *Run) End() {
	_ = r.conn.CloseWrite()
	for r.in.Scan() {
	}
	r.Close()
}

// Close ends the connection, and with it the command.
func (r *Run) Close() error {
	err := r.conn.Close()
	r.leave()
	return err
}
