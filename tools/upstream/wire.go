package upstream

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/scopefs/scopefs/tools"
)

const (
	maxLine      = 16 << 20         // bytes of one message
	maxUnread    = 64               // requests of the server that it has not read the answers of
	writeTimeout = 30 * time.Second // for a server to read what it is sent
)

var errTooLong = fmt.Errorf("it sent a message of more than %d MiB", maxLine>>20)

// wire is the standard output of a server, without what is no message: servers
// are known to print greetings, and one such line would end the connection.
// It also holds back a server that asks but does not read: each of its requests
// would cost memory until it does.
type wire struct {
	stdin, stdout *os.File
	lines         *bufio.Reader
	line          []byte
	rest          []byte        // of line, to be read
	other         io.Writer     // for what is no message
	unread        chan struct{} // one for each request that is not answered
	closed        chan struct{}
	close         sync.Once

	mu  sync.Mutex
	err error // why it broke
}

func newWire(stdin, stdout *os.File, other io.Writer) *wire {
	return &wire{
		stdin: stdin, stdout: stdout, lines: bufio.NewReaderSize(stdout, 64<<10), other: other,
		unread: make(chan struct{}, maxUnread), closed: make(chan struct{}),
	}
}

func (w *wire) Read(p []byte) (int, error) {
	for len(w.rest) == 0 {
		err := w.next()
		if many := new(tools.Tally).Add(w.line); many != nil {
			return 0, w.broke(many)
		}
		k, admitted := admit(w.line)
		switch k {
		case noise:
			w.other.Write(w.line)
		case request:
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

// next reads a line, with its end.
func (w *wire) next() error {
	if cap(w.line) > 1<<20 {
		w.line = nil // one large answer is not kept for good
	}
	var err error
	w.line, err = readLine(w.lines, w.line[:0], maxLine)
	return err
}

// readLine appends a line to line, with its end. The error is errTooLong when
// it would have more than most bytes then, and no line with that.
func readLine(from *bufio.Reader, line []byte, most int) ([]byte, error) {
	for {
		part, err := from.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > most {
			return line[:0], errTooLong
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// kind is what a line is.
type kind int

const (
	noise        kind = iota // no message: what else a program may print, JSON logs included
	request                  // wants an answer
	notification             // does not
	response
)

// validID is an id of a message. The protocol has no null, and no fractions.
var validID = regexp.MustCompile(`^(-?[0-9]{1,15}|"[^\\]{0,200}")$`)

// parse tells what a line is, the method and the id of it.
func parse(line []byte) (k kind, method, id string) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 || line[0] != '{' {
		return noise, "", ""
	}
	var keys map[string]json.RawMessage // a struct would take "METHOD" for "method"
	if json.Unmarshal(line, &keys) != nil || string(keys["jsonrpc"]) != `"2.0"` {
		return noise, "", ""
	}
	has := func(key string) bool { _, ok := keys[key]; return ok }
	id = string(keys["id"])
	switch {
	case has("id") && !validID.MatchString(id):
	case has("method"):
		if json.Unmarshal(keys["method"], &method) != nil {
			return noise, "", ""
		}
		if has("id") {
			return request, method, id
		}
		return notification, method, ""
	case has("id") && (has("result") || has("error")):
		return response, "", id
	}
	return noise, "", ""
}

// admit returns what is passed on of a line: answers as they are, and the few
// things that a server may begin with itself, written anew. The SDK knows more of
// them, of which we have no use, and a handler of one (1.8.0,
// notifications/elicitation/complete) ends the process when params are missing.
func admit(line []byte) (kind, []byte) {
	k, method, id := parse(line)
	switch {
	case k == response:
		return k, line
	case k == request && method != "ping" && method != "roots/list":
		method = "unsupported" // which is what it is told
		fallthrough
	case k == request:
		return k, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":%q}`+"\n", id, method)
	case k == notification && method == "notifications/tools/list_changed":
		return k, fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q}`+"\n", method)
	}
	return k, nil
}

func (w *wire) Close() error {
	w.close.Do(func() { close(w.closed) })
	return w.stdout.Close()
}

// broke keeps the first reason of the connection's end, which the SDK hides.
func (w *wire) broke(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	return err
}

// reason returns why the connection has ended, for which the SDK says err.
func (w *wire) reason(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch _, theirs := errors.AsType[*jsonrpc.Error](err); {
	case theirs: // they said it, and ended then
		return err
	case errors.Is(w.err, errTooLong), errors.Is(w.err, tools.ErrTooMany), errors.Is(w.err, errNotRead):
		return w.err
	case errors.Is(err, io.EOF), err == nil, errors.Is(w.err, io.EOF):
		return errors.New("its output ended")
	}
	return err
}

// errNotRead is the error of a server that does not read.
var errNotRead = fmt.Errorf("it read nothing for %v", writeTimeout)

// input is the standard input of a server.
type input struct{ *wire }

func (w *wire) writer() io.WriteCloser { return input{w} }

// Write is called with one whole message, as mcp.IOTransport writes them.
func (in input) Write(p []byte) (int, error) {
	in.stdin.SetWriteDeadline(time.Now().Add(writeTimeout)) // a pipe of the sandbox has one
	n, err := in.stdin.Write(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = in.broke(errNotRead)
		in.wire.Close() // half a message cannot be followed by another
	}
	if k, _, _ := parse(p); k == response {
		select {
		case <-in.unread:
		default:
		}
	}
	return n, err
}

func (in input) Close() error { return in.stdin.Close() }
