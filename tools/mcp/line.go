package mcp

import (
	"bufio"
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

	"github.com/scopefs/scopefs/tools"
)

// lines is the protocol's stdio transport, a message a line, on a connection
// that can be closed while it is read. The SDK's own reads by one more goroutine
// and encodes a result once more: for 4 KiB of text that is a third of a call.
// Batches, which only the protocol of 2025-03-26 had, are not taken.
type lines struct {
	conn io.ReadWriteCloser
	in   *bufio.Reader

	open     chan struct{} // holds one for each request that has no answer yet
	answered chan struct{} // tells that there was an answer
	closed   chan struct{}
	shut     sync.Once

	writing  sync.Mutex
	patience time.Duration                            // for a client to read one message
	hold     func(size int) (release func(), ok bool) // for answers
}

// patience is how long a client may take to read one message. One that reads none
// is gone.
const patience = time.Minute

// maxOpen is how many requests of a client may have no answer yet. More are not
// read: each would take a goroutine, of which one that reads no answers gets rid
// of none. It is far more than there are calls at the same time.
const maxOpen = 256

// lastCalls is how long calls may go on when a client says no more.
const lastCalls = time.Second

func newLines(conn io.ReadWriteCloser, hold func(int) (func(), bool)) *lines {
	return &lines{
		patience: patience, hold: hold,
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

// Close closes the connection.
func (l *lines) Close() error {
	l.shut.Do(func() { close(l.closed) })
	return l.conn.Close()
}

// Read returns the next message. What is no message ends the connection.
func (l *lines) Read(context.Context) (jsonrpc.Message, error) {
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
		m, err := jsonrpc.DecodeMessage(line)
		if err != nil {
			l.complain(err)
		}
		r, ok := m.(*jsonrpc.Request)
		if ok {
			receive(r, line)
		}
		if ok && r.IsCall() {
			select {
			case l.open <- struct{}{}:
			case <-l.closed:
				return nil, io.EOF
			}
		}
		return m, err
	}
}

// complain says that a message was none; JSON-RPC 2.0, 5.1.
func (l *lines) complain(err error) {
	text, merr := json.Marshal(tools.Clip(err.Error(), 500))
	if merr != nil {
		return
	}
	_ = l.write(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":%s}}`+"\n", text))
}

// linger waits, when nothing more comes, until what was asked is answered: the
// SDK cancels all that runs when it hears of the end.
func (l *lines) linger() {
	over := time.NewTimer(lastCalls)
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

var errTooLong = fmt.Errorf("a message has more than %d bytes", maxMessage)

// line reads up to a newline, which is not returned.
func (l *lines) line() ([]byte, error) {
	var all []byte
	for {
		part, err := l.in.ReadSlice('\n')
		if len(all)+len(part) > maxMessage {
			return nil, errTooLong
		}
		all = append(all, part...) // ReadSlice's is overwritten by the next
		switch {
		case err == nil:
			for len(all) > 0 && (all[len(all)-1] == '\n' || all[len(all)-1] == '\r') {
				all = all[:len(all)-1]
			}
			return all, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(all) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
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
		r.Result = nil // the SDK has it as long as the client does not read
		release, ok := l.hold(len(text))
		if !ok {
			if text, err = unread(r.ID); err != nil {
				return err
			}
			release = func() {}
		}
		defer release()
	}
	return l.write(append(text, '\n'))
}

// write writes one message.
func (l *lines) write(text []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if d, ok := l.conn.(interface{ SetWriteDeadline(time.Time) error }); ok {
		_ = d.SetWriteDeadline(time.Now().Add(l.patience))
	}
	_, err := l.conn.Write(text)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		l.Close() // a message that is cut is the last
	}
	return err
}

// unread stands for an answer for which there is no room.
func unread(id jsonrpc.ID) ([]byte, error) {
	result, err := json.Marshal(failed(tools.Errorf(tools.RateLimited, "the answers that were not read yet have too many bytes")))
	if err != nil {
		return nil, err
	}
	return encode(&jsonrpc.Response{ID: id, Result: result})
}

// encode is jsonrpc.EncodeMessage, but for a result, which is JSON already, and for
// ids of the client's requests, which are the client's: of a response, and of a
// subscription.
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
	id, err := sent(r.ID)
	if err != nil {
		return nil, err
	}
	if r.Error != nil || len(r.Result) == 0 {
		text, err := jsonrpc.EncodeMessage(m)
		return replaceMember(text, "id", func([]byte) []byte { return id }), err
	}
	result := replaceSubscription(r.Result, func(text string) []byte {
		if text != string(id) { // not of this request
			return nil
		}
		return id
	})
	text := make([]byte, 0, len(result)+len(id)+40)
	text = append(text, `{"jsonrpc":"2.0","id":`...)
	text = append(append(text, id...), `,"result":`...)
	return append(append(text, result...), '}'), nil
}
