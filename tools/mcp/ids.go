package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The SDK reads the id of a request as a float64 and keeps it as an int64: 1.5 and
// large integers would come back as others. To the SDK an id is therefore a text
// that holds the JSON that the client sent, and answers get that JSON back.

// cancelled is the notification that names a request.
const cancelled = "notifications/cancelled"

// member returns where the value of a member of an object begins and ends; 0 and 0
// when there is none. Of several the last counts, as for the SDK. What is no JSON
// gives any part of it. It takes a tenth of the time of a json.Decoder.
func member(object []byte, name string) (start, end int) {
	depth, value := 0, 0
	for i := 0; i < len(object); i++ {
		switch object[i] {
		case '"':
			from := i
			i = stringEnd(object, i)
			colon := i + blanks(object[i:])
			if depth != 1 || colon >= len(object) || object[colon] != ':' {
				i-- // back on the quote
				continue
			}
			if value = 0; isName(object[from:i], name) {
				value = colon + 1
			}
			i = colon
			continue
		case '{', '[':
			depth++
			continue
		case '}', ']':
			if depth--; depth != 0 {
				continue
			}
		case ',':
			if depth != 1 {
				continue
			}
		default:
			continue
		}
		if value > 0 {
			start = value + blanks(object[value:i])
			end = start + len(bytes.TrimRight(object[start:i], " \t\r\n"))
			value = 0
		}
	}
	return start, end
}

// stringEnd returns where a string ends that begins at i.
func stringEnd(text []byte, i int) int {
	for i++; i < len(text); i++ {
		switch text[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
	return len(text)
}

func blanks(text []byte) int { return len(text) - len(bytes.TrimLeft(text, " \t\r\n")) }

func isName(text []byte, name string) bool {
	if bytes.IndexByte(text, '\\') < 0 {
		return len(text) >= 2 && string(text[1:len(text)-1]) == name
	}
	var got string
	return json.Unmarshal(text, &got) == nil && got == name
}

// replaceMember returns an object with another value of a member, which change
// makes of the old; nil leaves it.
func replaceMember(object []byte, name string, change func(old []byte) []byte) []byte {
	start, end := member(object, name)
	if end == 0 {
		return object
	}
	value := change(object[start:end])
	if value == nil {
		return object
	}
	return bytes.Join([][]byte{object[:start], value, object[end:]}, nil)
}

// quoted is a text as JSON.
func quoted(text string) []byte {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // cannot happen
	}
	return b
}

// receive puts the JSON of its id, and of the id that it cancels, in the place of
// what the SDK has read.
func receive(r *jsonrpc.Request, line []byte) {
	if r.Method == cancelled {
		r.Params = replaceMember(r.Params, "requestId", func(old []byte) []byte { return quoted(string(old)) })
	}
	if !r.IsCall() {
		return
	}
	start, end := member(line, "id")
	text := line[start:end]
	if end == 0 { // the SDK has found one: cannot happen
		text = quoted(fmt.Sprint(r.ID.Raw()))
	}
	if id, err := jsonrpc.MakeID(string(text)); err == nil {
		r.ID = id
	}
}

// sent is the id of a response as the client gave it.
func sent(id jsonrpc.ID) ([]byte, error) {
	if text, ok := id.Raw().(string); ok {
		return []byte(text), nil
	}
	return json.Marshal(id.Raw())
}

// subscriptionID is the member of _meta that names the request by which a client
// has subscribed: of each notification, and of the request's response.
const subscriptionID = mcp.MetaKeySubscriptionID

// replaceSubscription returns params or a result with another value of its
// subscriptionID. change gets the text that the SDK has for the id, and returns
// the JSON of the id; nil leaves it.
func replaceSubscription(object []byte, change func(text string) []byte) []byte {
	if !bytes.Contains(object, []byte(subscriptionID)) {
		return object
	}
	return replaceMember(object, "_meta", func(meta []byte) []byte {
		return replaceMember(meta, subscriptionID, func(old []byte) []byte {
			var text string
			if json.Unmarshal(old, &text) != nil {
				return nil
			}
			return change(text)
		})
	})
}

// jsonID is the id that a text of receive holds, or nil.
func jsonID(text string) []byte {
	if !json.Valid([]byte(text)) {
		return nil
	}
	return []byte(text)
}

// By HTTP, where the SDK alone decodes and encodes, the ids that it would change
// are texts that begin with this.
const idMark = "scopefs-id:"

// mark returns the text for an id that the SDK would change, or nil.
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
		kept = true // null, or what is no id
	}
	if kept {
		return nil
	}
	return quoted(idMark + string(id))
}

// exactIDs has the SDK keep the ids of a request by HTTP.
func exactIDs(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, func()) {
	body := &markedBody{ReadCloser: r.Body}
	r.Body = body
	out := &unmarked{ResponseWriter: w, body: body}
	return out, out.end
}

// markedBody is a body in which ids are marked.
type markedBody struct {
	io.ReadCloser
	text   io.Reader // nil until it is read
	marked bool      // there was something to mark
}

func (b *markedBody) Read(p []byte) (int, error) {
	if b.text == nil {
		text, err := io.ReadAll(io.LimitReader(b.ReadCloser, maxMessage+1)) // the SDK refuses what is longer
		if err != nil {
			return 0, err
		}
		had := len(text)
		text = replaceMember(text, "id", mark)
		if bytes.Contains(text, []byte(cancelled)) {
			text = replaceMember(text, "params", func(old []byte) []byte { return replaceMember(old, "requestId", mark) })
		}
		b.marked = len(text) != had
		b.text = io.MultiReader(bytes.NewReader(text), b.ReadCloser)
	}
	return b.text.Read(p)
}

// unmarked writes responses without the marks: an event or a message a line.
type unmarked struct {
	http.ResponseWriter
	body *markedBody
	line []byte // that has no end yet
}

func (w *unmarked) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *unmarked) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

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

// end writes a last line that has no end.
func (w *unmarked) end() {
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
	data = replaceMember(data, "id", func(old []byte) []byte {
		var text string
		if json.Unmarshal(old, &text) != nil {
			return nil
		}
		return unmarkID(text)
	})
	for _, of := range []string{"params", "result"} {
		data = replaceMember(data, of, func(old []byte) []byte { return replaceSubscription(old, unmarkID) })
	}
	if event {
		return append([]byte("data: "), data...)
	}
	return data
}

// unmarkID returns the id of a marked text, or nil.
func unmarkID(text string) []byte {
	id, ok := strings.CutPrefix(text, idMark)
	if !ok {
		return nil
	}
	return jsonID(id)
}
