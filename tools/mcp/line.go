package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/internal/rpc"
	"github.com/scopefs/scopefs/tools"
)

// lines is MCP's stdio transport, with one message per line, on a connection that
// can be closed during a read. The SDK's transport reads on one more goroutine and
// encodes each result twice: for 4 KiB of text that is a third of a call's time.
// It does not support batches, which only protocol version 2025-03-26 had.
type lines struct {
	conn io.ReadWriteCloser
	in   *bufio.Reader

	begin    chan struct{} // no message is read until it is closed; nil: it is
	open     chan struct{} // one element per request in flight
	answered chan struct{} // signals that a response was written
	closed   chan struct{}
	shut     sync.Once

	sources sources

	writing      sync.Mutex
	writeTimeout time.Duration
	hold         func(size int) (release func(), ok bool) // reserves memory for a response
}

// writeTimeout is how long a client may take to read one message. Then the
// connection is closed.
const writeTimeout = time.Minute

// maxOpen limits a client's requests in flight. At the limit Read waits: each
// request has a goroutine, and a client that never reads responses would never
// free its goroutines. The limit is far above the calls that run at once.
const maxOpen = 256

// maxLinger is how long running calls may continue after the client has closed its
// sending side.
const maxLinger = time.Second

func newLines(conn io.ReadWriteCloser, hold func(int) (func(), bool)) *lines {
	return &lines{
		writeTimeout: writeTimeout, hold: hold,
		conn: conn, in: bufio.NewReaderSize(conn, 64<<10),
		open: make(chan struct{}, maxOpen), answered: make(chan struct{}, 1), closed: make(chan struct{}),
	}
}

var (
	_ mcp.Transport  = (*lines)(nil)
	_ mcp.Connection = (*lines)(nil)
)

func (l *lines) Connect(context.Context) (mcp.Connection, error) { return l, nil }
func (l *lines) SessionID() string                               { return "" }

// Close closes the connection. It implements mcp.Connection, as do Read and Write.
func (l *lines) Close() error {
	l.shut.Do(func() { close(l.closed) })
	return l.conn.Close()
}

// Read returns the next message. It answers a line that is no message with an error.
func (l *lines) Read(context.Context) (jsonrpc.Message, error) {
	if l.begin != nil {
		<-l.begin
	}
	for {
		line, err := l.line()
		if err != nil {
			l.linger()
			return nil, err
		}
		if len(line) == 0 {
			continue
		}
		if err := new(tools.Tally).Add(line); err != nil {
			return nil, err
		}
		m, id, err := decode(line)
		if err != nil {
			if err := l.complain(line, id, err); err != nil {
				return nil, err
			}
			continue
		}
		if r, ok := m.(*jsonrpc.Request); ok && r.IsCall() {
			select {
			case l.open <- struct{}{}:
			case <-l.closed:
				return nil, io.EOF
			}
			l.add(r, id)
		}
		return m, nil
	}
}

// maxBadID limits the id that complain returns, in bytes.
const maxBadID = 500

// complain sends the error for a line that is no message: a parse error, or an invalid
// request with its id if the line has one (JSON-RPC 2.0, section 5.1).
func (l *lines) complain(line, id []byte, why error) error {
	code := -32700
	if json.Valid(line) {
		code = -32600
	}
	if id == nil || len(id) > maxBadID {
		id = []byte("null")
	}
	text := quoted(tools.Clip(why.Error(), 500))
	return l.write(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%s}}`+"\n", id, code, text))
}

// linger waits up to maxLinger for the responses to requests in flight. It runs
// before Read returns the end of the input, at which the SDK cancels all calls.
func (l *lines) linger() {
	over := time.NewTimer(maxLinger)
	defer over.Stop()
	for len(l.open) > 0 {
		select {
		case <-l.answered:
		case <-l.closed:
			return
		case <-over.C:
			return
		}
	}
}

// line returns the next line without its end. An unterminated last line is
// io.ErrUnexpectedEOF.
func (l *lines) line() ([]byte, error) {
	line, err := rpc.ReadLine(l.in, nil, maxMessage)
	if errors.Is(err, io.EOF) && len(line) > 0 {
		return nil, io.ErrUnexpectedEOF
	}
	return bytes.TrimRight(line, "\r\n"), err
}

func (l *lines) Write(_ context.Context, m jsonrpc.Message) error {
	if _, ok := m.(*jsonrpc.Response); ok {
		defer func() {
			select {
			case <-l.open:
			default:
			}
			select {
			case l.answered <- struct{}{}:
			default:
			}
		}()
	}
	text, err := encode(m)
	if err != nil {
		return err
	}
	if r, ok := m.(*jsonrpc.Response); ok {
		r.Result = nil // free it: the SDK keeps r until the client has read the response
		release, ok := l.hold(len(text))
		if !ok {
			if text, err = unread(r.ID); err != nil {
				return err
			}
			release = func() {}
		}
		defer release()
		src := l.take(r.ID)
		src.answer()
		err := l.write(append(text, '\n'))
		if err == nil {
			src.done()
		}
		return err
	}
	return l.write(append(text, '\n'))
}

// write writes one message.
func (l *lines) write(text []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if d, ok := l.conn.(interface{ SetWriteDeadline(time.Time) error }); ok {
		_ = d.SetWriteDeadline(time.Now().Add(l.writeTimeout))
	}
	_, err := l.conn.Write(text)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		l.Close() // no message can follow an incomplete one
	}
	return err
}

// unread returns the error that replaces a response when hold refuses its memory.
func unread(id jsonrpc.ID) ([]byte, error) {
	result, err := json.Marshal(failed(tools.Errorf(tools.RateLimited, "too many bytes in unread responses: read them first")))
	if err != nil {
		return nil, err
	}
	return encode(&jsonrpc.Response{ID: id, Result: result})
}

// encode returns the JSON of a message. It differs from jsonrpc.EncodeMessage in two
// points: it copies a result, which is JSON already, and it restores the client's
// ids in responses and subscriptions.
func encode(m jsonrpc.Message) ([]byte, error) {
	if r, ok := m.(*jsonrpc.Request); ok {
		copied := *r
		copied.Params = replaceSubscription(r.Params, jsonID)
		m = &copied
	}
	r, ok := m.(*jsonrpc.Response)
	if !ok {
		return jsonrpc.EncodeMessage(m)
	}
	id, err := clientID(r.ID)
	if err != nil {
		return nil, err
	}
	if r.Error != nil || len(r.Result) == 0 {
		text, err := jsonrpc.EncodeMessage(m)
		return rpc.Replace(text, "id", func([]byte) []byte { return id }), err
	}
	result := replaceSubscription(r.Result, func(text string) []byte {
		if text != string(id) { // the id of another request
			return nil
		}
		return id
	})
	text := make([]byte, 0, len(result)+len(id)+40)
	text = append(text, `{"jsonrpc":"2.0","id":`...)
	text = append(append(text, id...), `,"result":`...)
	return append(append(text, result...), '}'), nil
}
