package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/internal/rpc"
)

// The SDK decodes a request's id as a float64 and stores it as an int64, which
// changes 1.5 and large integers. Therefore the SDK gets a string that holds the
// id's JSON as the client sent it, and responses get that JSON back.

// cancelled is the method of the notification that cancels a request by its id.
const cancelled = "notifications/cancelled"

// quoted returns text as a JSON string.
func quoted(text string) []byte {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // cannot happen
	}
	return b
}

// maxID bounds the id of a request, in bytes. Clients number their requests, or send a UUID.
const maxID = 1 << 10

var errLongID = errors.New("the id has more than 1024 bytes")

// decode returns the message of a line, and the JSON of its id if it is none. The context
// of a call is quoted. The id of a request, and the requestId of a cancellation, are
// strings that hold their JSON. A response to a request that was not sent is nil. The message
// may hold parts of the line.
func decode(line []byte, sent func(id []byte) bool) (m jsonrpc.Message, id []byte, err error) {
	if !json.Valid(line) {
		return nil, nil, errors.New("invalid JSON")
	}
	h, err := rpc.Parse(line)
	if err != nil {
		return nil, h.ID, err
	}
	switch h.Kind {
	case rpc.Response: // to a request of the SDK, whose ids it does not change
		if !sent(h.ID) {
			return nil, h.ID, nil
		}
		m, err = jsonrpc.DecodeMessage(line)
		return m, h.ID, err
	case rpc.None:
		return nil, h.ID, errors.New("neither a request nor a response")
	}
	if len(h.ID) > maxID {
		return nil, nil, errLongID
	}
	r := &jsonrpc.Request{Method: h.Method, Params: quoteContext(h.Params)}
	if h.Method == cancelled {
		r.Params = rpc.Replace(r.Params, "requestId", func(old []byte) []byte { return quoted(string(old)) })
	}
	if h.Kind == rpc.Request {
		r.ID, err = jsonrpc.MakeID(string(h.ID))
	}
	return r, h.ID, err
}

// clientID returns the JSON of a response's id as the client sent it.
func clientID(id jsonrpc.ID) ([]byte, error) {
	if text, ok := id.Raw().(string); ok {
		return []byte(text), nil
	}
	return json.Marshal(id.Raw())
}

// subscriptionID is the key in _meta of the id of the request that subscribed. Each
// notification of a subscription has it, and the response to the request.
const subscriptionID = mcp.MetaKeySubscriptionID

// replaceSubscription replaces the subscriptionID in the _meta of params or of a
// result. change gets the SDK's string for the id and returns the id's JSON, or nil
// to keep the value.
func replaceSubscription(object []byte, change func(text string) []byte) []byte {
	if !bytes.Contains(object, []byte(subscriptionID)) {
		return object
	}
	return rpc.Replace(object, "_meta", func(meta []byte) []byte {
		return rpc.Replace(meta, subscriptionID, func(old []byte) []byte {
			var text string
			if json.Unmarshal(old, &text) != nil {
				return nil
			}
			return change(text)
		})
	})
}

// jsonID returns the JSON that a string of receive holds, or nil if it is invalid.
func jsonID(text string) []byte {
	if !json.Valid([]byte(text)) {
		return nil
	}
	return []byte(text)
}

// idMark is the prefix of a string that stands for an id over HTTP. There the SDK
// decodes and encodes by itself, so that the ids that it would change are replaced
// in the request's body and restored in the response.
const idMark = "scopefs-id:"

// mark returns the marked string for an id that the SDK would change, or nil.
func mark(id []byte) []byte {
	kept := false
	switch id[0] {
	case '"':
		var text string
		kept = json.Unmarshal(id, &text) == nil && bytes.Equal(quoted(text), id) && !bytes.Contains(id, []byte(`\`))
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		n, err := strconv.ParseFloat(string(id), 64)
		kept = err == nil && strconv.FormatInt(int64(n), 10) == string(id)
	default:
		kept = true // null, or no valid id
	}
	if kept {
		return nil
	}
	return quoted(idMark + string(id))
}

// exactIDs wraps a request and its response so that the ids keep their bytes, and bounds the request by the Inbox. The
// caller must call end when the response is complete.
func (f *Face) exactIDs(w http.ResponseWriter, r *http.Request) *unmarked {
	body := &markedBody{ReadCloser: r.Body, face: f, life: r.Context(), session: r.Header.Get(sessionHeader), free: func() {}, turn: func() {}}
	body.setDeadline = func(at time.Time) { _ = http.NewResponseController(w).SetReadDeadline(at) }
	r.Body = body
	return &unmarked{ResponseWriter: w, body: body}
}

// markedBody is a request's body with marked ids.
type markedBody struct {
	io.ReadCloser
	face    *Face
	life    context.Context // of the request
	session string          // the SDK's id of it
	size    int
	cost    time.Duration // to parse the message
	read    bool          // it was, and its cost is in what the agent has spent
	refused bool          // by its text, or if it is a call that does not come to the door
	called  bool          // it has come to the door
	free    func()        // releases the message's bytes
	turn    func()        // ends its turn to be parsed

	setDeadline func(time.Time) // of reads of the body
	text        io.Reader       // nil until the first Read
	marked      bool            // an id was marked

	request, id []byte // of a call of a tool that is short enough to be kept; nil: it is none
}

func (b *markedBody) Read(p []byte) (int, error) {
	if b.text == nil {
		text, err := b.message()
		if err != nil {
			return 0, err
		}
		b.text = io.MultiReader(bytes.NewReader(text), b.ReadCloser)
	}
	return b.text.Read(p)
}

// errBatch is the error of a body with several messages, which only protocol version 2025-03-26 had.
var errBatch = errors.New("batches are not supported")

// message reads the message, and returns what the SDK gets of it.
func (b *markedBody) message() ([]byte, error) {
	inbox := b.face.opt.Inbox
	text, release, err := inbox.readBody(b.life, b.ReadCloser, b.setDeadline) // the SDK refuses a longer body
	defer func() { release() }()
	if err != nil {
		return nil, err
	}
	turn, err := inbox.turn(b.life, len(text))
	if err != nil {
		return nil, err
	}
	b.turn, b.read, b.refused = turn, true, true
	if b.cost, err = inbox.tally(text); err != nil {
		return nil, err
	}
	h, err := rpc.Parse(text)
	switch {
	case errors.Is(err, rpc.ErrTwice):
		return nil, err
	case bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("[")):
		return nil, errBatch
	case h.Kind == rpc.Request && len(h.ID) > maxID:
		return nil, errLongID
	}
	size := len(text)
	if h.Kind == rpc.Request && h.Method == methodCall && size <= maxKeptRequest && len(h.ID) <= maxKeptID {
		b.request, b.id = text, h.ID
	}
	switch h.Kind {
	case rpc.Notification:
		text, err = b.notification(h)
	case rpc.Request:
		free, ok := inbox.held.Hold(size, maxInbox)
		if !ok {
			return nil, errFull
		}
		b.size, b.free = size, sync.OnceFunc(free)
		text = rpc.Replace(text, "id", mark)
		b.marked = len(text) != size
		text = rpc.Replace(text, "params", func(old []byte) []byte { return quoteContext(old) })
	}
	if size > shortMessage && size <= largeMessage { // it is in the buffer that release gives back
		text = bytes.Clone(text)
	}
	if h.Kind == rpc.Request && isCall(h.Method) {
		b.free = handOver(size, b.free, release)
		release = func() {}
	}
	if h.Kind != rpc.Request || !isCall(h.Method) {
		b.turn()
	}
	if b.refused = h.Method == methodCall; h.Kind == rpc.Request && !isCall(h.Method) {
		inbox.other()
	}
	return text, err
}

// end releases what the message takes, when the response is complete.
func (b *markedBody) end() {
	b.free()
	b.turn()
	switch {
	case !b.read: // the SDK needs no body, or has refused the request by its head
		b.face.opt.Inbox.other()
	case b.refused && !b.called:
		b.face.opt.Inbox.refused(b.cost)
	}
}

// notification returns what the SDK gets of a notification. One that it does not need becomes a response to no request,
// which the SDK drops without queueing it: so the SDK still checks the session, and answers.
func (b *markedBody) notification(h rpc.Head) ([]byte, error) {
	r := &jsonrpc.Request{Method: h.Method, Params: rpc.Replace(h.Params, "requestId", mark)}
	if !wanted(r) {
		return []byte(`{"jsonrpc":"2.0","id":"scopefs-none","result":{}}`), nil
	}
	if !b.face.notes.add(b.session) {
		return nil, errFull
	}
	return jsonrpc.EncodeMessage(r)
}

// unmarked restores the marked ids in a response, in which each line is a message
// or a field of an event.
type unmarked struct {
	http.ResponseWriter
	body *markedBody
	line []byte // the last line, without its newline yet
}

func (w *unmarked) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *unmarked) Flush() { _ = w.FlushError() }

// FlushError is for http.ResponseController.
func (w *unmarked) FlushError() error { return http.NewResponseController(w.ResponseWriter).Flush() }

func (w *unmarked) Write(p []byte) (int, error) {
	if !w.body.marked {
		return w.ResponseWriter.Write(p)
	}
	w.Header().Del("Content-Length")
	w.line = append(w.line, p...)
	for {
		i := bytes.IndexByte(w.line, '\n')
		if i < 0 {
			return len(p), nil
		}
		if _, err := w.ResponseWriter.Write(unmark(w.line[:i+1])); err != nil {
			return 0, err
		}
		w.line = w.line[i+1:]
	}
}

// end writes a last line without a newline.
func (w *unmarked) end() {
	w.body.end()
	if len(w.line) > 0 {
		_, _ = w.ResponseWriter.Write(unmark(w.line))
		w.line = nil
	}
}

func unmark(line []byte) []byte {
	if !bytes.Contains(line, []byte(idMark)) {
		return line
	}
	data, event := bytes.CutPrefix(line, []byte("data: "))
	data = rpc.Replace(data, "id", func(old []byte) []byte {
		var text string
		if json.Unmarshal(old, &text) != nil {
			return nil
		}
		return unmarkID(text)
	})
	for _, parent := range []string{"params", "result"} {
		data = rpc.Replace(data, parent, func(old []byte) []byte { return replaceSubscription(old, unmarkID) })
	}
	if event {
		return append([]byte("data: "), data...)
	}
	return data
}

// unmarkID returns the id of a marked string, or nil.
func unmarkID(text string) []byte {
	id, ok := strings.CutPrefix(text, idMark)
	if !ok {
		return nil
	}
	return jsonID(id)
}
