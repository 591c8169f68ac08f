package upstream

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/scopefs/scopefs/internal/rpc"
	"github.com/scopefs/scopefs/tools"
)

const (
	maxLine      = 16 << 20         // bytes per message
	maxUnread    = 64               // requests of the server whose responses it has not read
	writeTimeout = 30 * time.Second // for a server to read a message
)

var errTooLong = fmt.Errorf("it sent a message of more than %d MiB", maxLine>>20)

// stdio filters the standard output of a server. It removes lines that are no
// messages: some servers print a greeting, which would end the SDK's connection.
// It stops reading from a server that sends requests but reads no responses, since
// each request in flight uses memory.
type stdio struct {
	stdin, stdout *os.File
	lines         *bufio.Reader
	line          []byte
	rest          []byte    // of line, to be returned by Read
	other         io.Writer // receives the lines that are no messages
	notices       *notices
	unread        chan struct{} // one element per request in flight
	closed        chan struct{}
	close         sync.Once

	mu  sync.Mutex
	err error // the first cause of the connection's end
}

func newStdio(stdin, stdout *os.File, other io.Writer, n *notices) *stdio {
	return &stdio{
		stdin: stdin, stdout: stdout, lines: bufio.NewReaderSize(stdout, 64<<10), other: other, notices: n,
		unread: make(chan struct{}, maxUnread), closed: make(chan struct{}),
	}
}

// tooLong returns errTooLong for rpc.ErrTooLong.
func tooLong(err error) error {
	if errors.Is(err, rpc.ErrTooLong) {
		return errTooLong
	}
	return err
}

func (w *stdio) Read(p []byte) (int, error) {
	for len(w.rest) == 0 {
		err := w.next()
		if bad := w.notices.read(w.line); bad != nil {
			return 0, w.broke(bad)
		}
		k, admitted := admit(w.line, w.notices)
		switch k {
		case rpc.None:
			_, _ = w.other.Write(w.line) // other keeps the tail of what is no message
		case rpc.Request:
			select {
			case w.unread <- struct{}{}:
			case <-w.closed:
				return 0, os.ErrClosed
			}
		}
		w.rest = admitted
		if err != nil && len(w.rest) == 0 {
			return 0, w.broke(err)
		}
	}
	n := copy(p, w.rest)
	w.rest = w.rest[n:]
	return n, nil
}

// next reads a line, with its newline.
func (w *stdio) next() error {
	if cap(w.line) > 1<<20 {
		w.line = nil // do not keep the buffer of a large message
	}
	var err error
	w.line, err = rpc.ReadLine(w.lines, w.line[:0], maxLine)
	return tooLong(err)
}

// validID matches the id of a message. MCP forbids null and fractions.
var validID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(-?[0-9]{1,15}|"[^\\]{0,200}")$`) })

// parse returns the head of a line. Its kind is rpc.None for an id that MCP forbids.
func parse(line []byte) rpc.Head {
	h, err := rpc.Parse(line)
	if err != nil || h.ID != nil && !validID().Match(h.ID) || !json.Valid(line) {
		return rpc.Head{}
	}
	return h
}

// admit returns the kind of a line and the message to pass to the SDK. A response
// passes unchanged. ping and roots/list are written anew without params. Any other
// request becomes one for the method "unsupported", which the SDK answers with an error.
// n handles the notifications: a handler of the SDK (1.8.0,
// notifications/elicitation/complete) panics when params are missing.
func admit(line []byte, n *notices) (rpc.Kind, []byte) {
	h := parse(line)
	switch h.Kind {
	case rpc.Response:
		return h.Kind, line
	case rpc.Request:
		if h.Method != "ping" && h.Method != "roots/list" {
			h.Method = "unsupported"
		}
		return h.Kind, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":%q}`+"\n", h.ID, h.Method)
	case rpc.Notification:
		return h.Kind, n.take(h, len(line))
	}
	return h.Kind, nil
}

func (w *stdio) Close() error {
	w.close.Do(func() { close(w.closed) })
	w.notices.end()
	return w.stdout.Close()
}

// broke records the first cause of the connection's end, which the SDK hides.
func (w *stdio) broke(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	return err
}

// reason returns the cause of the connection's end; err is the SDK's error.
func (w *stdio) reason(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch _, theirs := errors.AsType[*jsonrpc.Error](err); {
	case theirs: // the server's error response preceded the end
		return err
	case errors.Is(w.err, errTooLong), errors.Is(w.err, tools.ErrTooMany), errors.Is(w.err, errNotRead):
		return w.err
	case errors.Is(err, io.EOF), err == nil, errors.Is(w.err, io.EOF):
		return errors.New("its output ended")
	}
	return err
}

// errNotRead is the error of a server that does not read its input.
var errNotRead = fmt.Errorf("it read nothing for %v", writeTimeout)

// input writes the standard input of a server.
type input struct{ *stdio }

func (w *stdio) writer() io.WriteCloser { return input{w} }

// Write writes p, which is one whole message: mcp.IOTransport writes it so.
func (in input) Write(p []byte) (int, error) {
	in.stdin.SetWriteDeadline(time.Now().Add(writeTimeout)) // the sandbox's pipes support deadlines
	n, err := in.stdin.Write(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = in.broke(errNotRead)
		in.stdio.Close() // no message can follow an incomplete one
	}
	if parse(p).Kind == rpc.Response {
		select {
		case <-in.unread:
		default:
		}
	}
	return n, err
}

func (in input) Close() error { return in.stdin.Close() }
