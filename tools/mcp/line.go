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
	line []byte // the last line, of at most shortMessage bytes and what in has

	begin    chan struct{}   // no message is read until it is closed; nil: it is
	open     chan struct{}   // one element per message that the SDK has
	answered chan struct{}   // signals that an element was removed
	life     context.Context // ends with the connection
	shut     context.CancelFunc

	inbox   *Inbox
	sources sources
	sent    sync.Map // the JSON of the ids of requests to the client, until it responds

	writing      sync.Mutex
	writeTimeout time.Duration
	hold         func(size int) (release func(), ok bool) // reserves memory for a response
}

// writeTimeout is how long a client may take to read one message. Then the
// connection is closed.
const writeTimeout = time.Minute

// maxOpen limits a client's requests in flight and the notifications that the SDK has.
// At the limit Read waits: each request has a goroutine, and a client that never reads
// responses would never free its goroutines. The limit is far above the calls that run
// at once.
const maxOpen = 256

// maxLinger is how long running calls may continue after the client has closed its
// sending side.
const maxLinger = time.Second

func newLines(conn io.ReadWriteCloser, inbox *Inbox, hold func(int) (func(), bool)) *lines {
	l := &lines{
		writeTimeout: writeTimeout, hold: hold,
		conn: conn, in: bufio.NewReaderSize(conn, 64<<10), inbox: inbox,
		open: make(chan struct{}, maxOpen), answered: make(chan struct{}, 1),
	}
	l.life, l.shut = context.WithCancel(context.Background())
	return l
}

var (
	_ mcp.Transport  = (*lines)(nil)
	_ mcp.Connection = (*lines)(nil)
)

func (l *lines) Connect(context.Context) (mcp.Connection, error) { return l, nil }
func (l *lines) SessionID() string                               { return "" }

// Close closes the connection. It implements mcp.Connection, as do Read and Write.
func (l *lines) Close() error {
	l.shut()
	return l.conn.Close()
}

// Read returns the next message that the SDK needs. It answers a line that is no message with an error.
func (l *lines) Read(context.Context) (jsonrpc.Message, error) {
	if l.begin != nil {
		<-l.begin
	}
	for {
		m, err := l.next()
		if m != nil || err != nil {
			return m, err
		}
	}
}

// next reads a line, and returns nil for one that the SDK does not need.
func (l *lines) next() (jsonrpc.Message, error) {
	line, release, err := l.inbox.readLine(l.life, l)
	size := len(line)
	if err != nil {
		release()
		l.linger()
		if errors.Is(err, io.EOF) && size > 0 { // an unterminated last line
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	line = bytes.TrimRight(line, "\r\n")
	if len(line) == 0 {
		release()
		return nil, nil
	}
	done, err := l.inbox.turn(l.life, size)
	if err != nil {
		release()
		return nil, io.EOF
	}
	end := func() {
		release()
		done()
	}
	cost, err := l.inbox.tally(line)
	if err != nil {
		end()
		return nil, err
	}
	m, id, bad := decode(line, l.isSent)
	if bad != nil {
		text := complaint(line, id, bad)
		end()
		return nil, l.write(text)
	}
	r, ok := m.(*jsonrpc.Request)
	if ok && !r.IsCall() && (!wanted(r) || r.Method == cancelled && !l.cancel(cancelledID(r.Params))) {
		m, r = nil, nil
	}
	m, id = keep(m, id, size)
	if r == nil || !isCall(r.Method) {
		end()
	}
	if r == nil {
		return m, nil
	}
	if err := l.place(size, end); err != nil {
		if !errors.Is(err, errFull) {
			return nil, err
		}
		return nil, l.write(complaint(nil, id, err))
	}
	if err := l.add(r, id, cost, done, release); err != nil {
		end()
		l.inbox.other()
		return nil, l.write(complaint(nil, id, err))
	}
	if r.IsCall() && !isCall(r.Method) {
		l.inbox.other()
	}
	return m, nil
}

// place takes a place in l.open for a message of size bytes. It calls end if there is none yet: the calls under way may take hours, and
// the turns are those of all clients. An error has called it.
func (l *lines) place(size int, end func()) error {
	select {
	case l.open <- struct{}{}:
		return nil
	default:
	}
	end()
	free, ok := l.inbox.held.Hold(size, maxInbox)
	if !ok {
		return errFull
	}
	defer free()
	select {
	case l.open <- struct{}{}:
		return nil
	case <-l.life.Done():
		return io.EOF
	}
}

// isSent reports whether a response is to a request to the client, once.
func (l *lines) isSent(id []byte) bool {
	_, ok := l.sent.LoadAndDelete(string(id))
	return ok
}

// maxError limits the text of an error, in bytes.
const maxError = 500

// maxBadID limits the id of a complaint, in bytes.
const maxBadID = 500

// complaint returns the error for a line that the SDK does not get: a parse error, an invalid request with its id if the
// line has one (JSON-RPC 2.0, section 5.1), or an error of the agent's bounds.
func complaint(line, id []byte, why error) []byte {
	code := -32600
	switch {
	case errors.Is(why, errFull):
		code = codeFull
	case line != nil && !json.Valid(line):
		code = -32700
	}
	if id == nil || len(id) > maxBadID {
		id = []byte("null")
	}
	text := quoted(tools.Clip(why.Error(), maxError))
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%s}}`+"\n", id, code, text)
}

// codeFull is the code of errFull, of those that JSON-RPC leaves to servers.
const codeFull = -32001

// linger waits up to maxLinger for the responses to requests in flight. It runs
// before Read returns the end of the input, at which the SDK cancels all calls.
func (l *lines) linger() {
	over := time.NewTimer(maxLinger)
	defer over.Stop()
	for len(l.open) > 0 {
		select {
		case <-l.answered:
		case <-l.life.Done():
			return
		case <-over.C:
			return
		}
	}
}

func (l *lines) Write(_ context.Context, m jsonrpc.Message) error {
	if r, ok := m.(*jsonrpc.Request); ok && r.IsCall() {
		id, err := json.Marshal(r.ID.Raw())
		if err != nil {
			return err
		}
		l.sent.Store(string(id), true)
	}
	var src *source
	if r, ok := m.(*jsonrpc.Response); ok {
		r.Error = clipped(r.Error)
		src = l.take(r.ID)
		defer src.free()
	}
	text, err := encode(m)
	src.read()
	if err != nil {
		return err
	}
	if r, ok := m.(*jsonrpc.Response); ok {
		if src != nil && src.call && r.Error != nil {
			l.inbox.refused(src.cost)
		}
		if src != nil && src.mute {
			src.answer()
			src.done()
			return nil
		}
		r.Result = nil // free it: the SDK keeps r until the client has read the response
		release, ok := l.hold(len(text))
		if !ok {
			if text, err = unread(r.ID); err != nil {
				return err
			}
			release = func() {}
		}
		defer release()
		src.answer()
		err := l.write(append(text, '\n'))
		if err == nil {
			src.done()
		}
		return err
	}
	return l.write(append(text, '\n'))
}

// clipped returns an error of the SDK, which quotes the whole of what it could not decode, with a text of at most maxError bytes.
func clipped(err error) error {
	if err == nil || len(err.Error()) <= maxError {
		return err
	}
	short := &jsonrpc.Error{Message: tools.Clip(err.Error(), maxError)}
	if e, ok := errors.AsType[*jsonrpc.Error](err); ok {
		short.Code, short.Data = e.Code, e.Data
	}
	return short
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
