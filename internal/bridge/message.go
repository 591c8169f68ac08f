package bridge

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// jsonID is the ID of a request, as its sender wrote it.
type jsonID = json.RawMessage

// A message holds the fields of a JSON-RPC message that the bridge needs. A
// request has an ID and a method, a notification has a method, a response has
// an ID.
type message struct {
	ID     jsonID `json:"id"`
	Method string `json:"method"`
}

func (m message) request() bool  { return m.Method != "" && m.key() != "" }
func (m message) response() bool { return m.Method == "" && m.key() != "" }

// key returns the ID in a canonical form, for use as a map key. It returns ""
// if there is no ID.
func (m message) key() string {
	text := string(bytes.TrimSpace(m.ID))
	if text == "null" {
		return ""
	}
	if strings.HasPrefix(text, `"`) {
		var s string
		if json.Unmarshal(m.ID, &s) == nil {
			return strconv.Quote(s)
		}
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil && strings.ContainsAny(text, ".eE") {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return text
}

// parse parses a line. If the line is not a message, ok is false and m is empty.
func parse(line []byte) (m message, ok bool) {
	if m, ok := scan(line); ok {
		return m, true
	}
	if json.Unmarshal(line, &m) != nil {
		return message{}, false
	}
	return m, true
}

// parseAnswer is parse for messages from the daemon. It stops after the ID of a
// response in the daemon's format, because results can be large.
func parseAnswer(line []byte) (m message, ok bool) {
	rest, found := bytes.CutPrefix(line, []byte(`{"jsonrpc":"2.0","id":`))
	if found {
		id := rest
		if i := bytes.IndexByte(rest, ','); i > 0 {
			id = rest[:i]
		}
		after := rest[len(id):]
		if !bytes.ContainsAny(id, `\ `) && (bytes.HasPrefix(after, []byte(`,"result":`)) || bytes.HasPrefix(after, []byte(`,"error":`))) && json.Valid(id) {
			return message{ID: id}, true
		}
	}
	return parse(line)
}

// withID returns the message with another ID.
func withID(line []byte, id jsonID) ([]byte, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(line, &all); err != nil {
		return nil, err
	}
	all["id"] = id
	return encode(all), nil
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
	methodCancelled   = "notifications/cancelled"
	methodListChanged = "notifications/tools/list_changed"
	methodMessage     = "notifications/message"
)

// cancels returns the key of the request that a notification cancels.
func cancels(line []byte) string {
	var m struct {
		Params struct {
			RequestID json.RawMessage `json:"requestId"`
		} `json:"params"`
	}
	_ = json.Unmarshal(line, &m)
	return message{ID: m.Params.RequestID}.key()
}

// wantsTools reports whether a subscription includes changes of the tool list.
func wantsTools(listen []byte) bool {
	var m struct {
		Params struct {
			Notifications struct {
				ToolsListChanged bool `json:"toolsListChanged"`
			} `json:"notifications"`
		} `json:"params"`
	}
	return json.Unmarshal(listen, &m) == nil && m.Params.Notifications.ToolsListChanged
}

// levelOf returns the level in a logging/setLevel request, as a number.
func levelOf(setLevel []byte) int {
	var m struct {
		Params struct {
			Level string `json:"level"`
		} `json:"params"`
	}
	_ = json.Unmarshal(setLevel, &m)
	return level(m.Params.Level)
}

// level returns the number of an MCP log level, 0 for debug. The levels are
// those of syslog (RFC 5424).
func level(name string) int {
	for i, l := range []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"} {
		if l == name {
			return i
		}
	}
	return 0
}

// versionOf returns the protocol version in a response to initialize.
func versionOf(answer []byte) string {
	var m struct {
		Result struct {
			ProtocolVersion string `json:"protocolVersion"`
		} `json:"result"`
	}
	_ = json.Unmarshal(answer, &m)
	return m.Result.ProtocolVersion
}

var errTooLong = fmt.Errorf("a message exceeds %d bytes", maxMessage)

// reader reads lines.
type reader struct {
	in   *bufio.Reader
	long []byte // buffer for lines longer than in's buffer
}

func newReader(r io.Reader) *reader { return &reader{in: bufio.NewReaderSize(r, 64<<10)} }

// maxRoom limits the buffer kept for the next long line, in bytes.
const maxRoom = 4 << 20

// line returns a line with its newline. It returns errTooLong for more than max
// bytes; a max of 0 means no limit. The line is valid until the next call.
func (r *reader) line(max int) ([]byte, error) {
	line, err := r.in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		if err != nil && len(line) > 0 {
			return nil, io.ErrUnexpectedEOF // a partial message is not a message
		}
		return line, err
	}
	all := append(r.long[:0], line...)
	for errors.Is(err, bufio.ErrBufferFull) {
		if max > 0 && len(all) > max {
			return nil, errTooLong
		}
		line, err = r.in.ReadSlice('\n')
		all = append(all, line...)
	}
	if r.long = all; cap(all) > maxRoom {
		r.long = nil
	}
	if err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	return all, nil
}
