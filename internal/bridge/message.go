package bridge

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/scopefs/scopefs/internal/rpc"
)

// jsonID is the ID of a request, as its sender wrote it.
type jsonID = json.RawMessage

// message is the head of a message. Its zero value is no message.
type message struct{ rpc.Head }

func (m message) request() bool  { return m.Kind == rpc.Request }
func (m message) response() bool { return m.Kind == rpc.Response }

func (m message) key() string { return key(m.ID) }

// key returns an ID in a canonical form, for use as a map key. It returns ""
// if there is no ID.
func key(id jsonID) string {
	text := string(id)
	if strings.HasPrefix(text, `"`) {
		var s string
		if json.Unmarshal(id, &s) == nil {
			return strconv.Quote(s)
		}
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil && strings.ContainsAny(text, ".eE") {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return text
}

// parse parses a line. If the line is not a message, ok is false and m has no kind. It does
// not validate parameters and results, which can be megabytes.
func parse(line []byte) (m message, ok bool) {
	h, err := rpc.Parse(line)
	return message{h}, err == nil
}

// withID returns the message with another ID.
func withID(line []byte, id jsonID) []byte {
	return rpc.Replace(line, "id", func([]byte) []byte { return id })
}

// encode returns v as a line of JSON.
func encode(v any) []byte {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // cannot happen: the bridge built the value
	}
	return text.Bytes()
}

// object is a JSON object built by the bridge.
type object = map[string]any

func notification(method string, params object) []byte {
	m := object{"jsonrpc": "2.0", "method": method}
	if params != nil {
		m["params"] = params
	}
	return encode(m)
}

// codeGone is the JSON-RPC error code for a connection that ended. It is
// ErrorCode.ConnectionClosed of MCP's TypeScript SDK.
const codeGone = -32000

// failure returns an error response to a request. sent reports whether the
// daemon may have received the request.
func failure(id jsonID, text string, sent bool) []byte {
	effect := "none"
	if sent {
		effect = "unknown"
	}
	return encode(object{"jsonrpc": "2.0", "id": id, "error": object{
		"code": codeGone, "message": text, "data": object{"code": "unavailable", "effect": effect},
	}})
}

// The methods that change the state of a session. restore repeats them to a new
// connection.
const (
	methodInitialize  = "initialize"
	methodInitialized = "notifications/initialized"
	methodSetLevel    = "logging/setLevel"
	methodListen      = "subscriptions/listen" // of version 2026-07-28, which has no initialize
	methodCall        = "tools/call"
	methodCancelled   = "notifications/cancelled"
	methodListChanged = "notifications/tools/list_changed"
	methodMessage     = "notifications/message"
)

// content is what the bridge reads of messages beside their heads.
type content struct {
	Params struct {
		RequestID     json.RawMessage `json:"requestId"` // of a cancellation
		Level         string          `json:"level"`     // of logging/setLevel
		Notifications struct {
			ToolsListChanged bool `json:"toolsListChanged"`
		} `json:"notifications"` // of a subscription
	} `json:"params"`
	Result struct {
		ProtocolVersion string `json:"protocolVersion"` // in a response to initialize
	} `json:"result"`
}

// contentOf returns the content of a line. What is missing, or of another type, is zero.
func contentOf(line []byte) (c content) {
	_ = json.Unmarshal(line, &c)
	return c
}

// level returns the number of an MCP log level, 0 for debug and for no level. The levels
// are those of syslog (RFC 5424).
func level(name string) int {
	return max(0, slices.Index([]string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}, name))
}

// reader reads lines.
type reader struct {
	in   *bufio.Reader
	last []byte // buffer of the last line
}

func newReader(r io.Reader) *reader { return &reader{in: bufio.NewReaderSize(r, 64<<10)} }

// maxRoom limits the buffer kept for the next line, in bytes.
const maxRoom = 4 << 20

// line returns a line with its newline. It returns rpc.ErrTooLong for more than most
// bytes. The line is valid until the next call.
func (r *reader) line(most int) ([]byte, error) {
	line, err := rpc.ReadLine(r.in, r.last[:0], most)
	if r.last = line; cap(line) > maxRoom {
		r.last = nil
	}
	if err != nil && len(line) > 0 {
		return nil, io.ErrUnexpectedEOF // a partial message is not a message
	}
	return line, err
}
