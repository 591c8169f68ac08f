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

// A message is what the bridge reads of a JSON-RPC message: a request has an ID
// and a method, a notification a method, a response an ID.
type message struct {
	ID     jsonID `json:"id"`
	Method string `json:"method"`
}

func (m message) request() bool  { return m.Method != "" && m.key() != "" }
func (m message) response() bool { return m.Method == "" && m.key() != "" }

// key returns an ID as a text that is the same for each way to write it; "" is no
// ID.
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

// parse reads a line. It is not ok when the line is no JSON object.
func parse(line []byte) (m message, ok bool) {
	if m, ok := scan(line); ok {
		return m, true
	}
	return m, json.Unmarshal(line, &m) == nil
}

// parseAnswer is parse for what the daemon sends. A response as the daemon writes
// it is not read further than its ID: results are large.
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

// withID returns a message with another ID.
func withID(line []byte, id jsonID) ([]byte, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(line, &all); err != nil {
		return nil, err
	}
	all["id"] = id
	return encode(all), nil
}

// encode returns a value as a line.
func encode(v any) []byte {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // values of ours
	}
	return text.Bytes()
}

// object is a JSON object that the bridge makes.
type object = map[string]any

func notification(method string, params object) []byte {
	m := object{"jsonrpc": "2.0", "method": method}
	if params != nil {
		m["params"] = params
	}
	return encode(m)
}

// codeGone is the JSON-RPC error for a connection that ended. The TypeScript SDK
// of MCP has the same (ErrorCode.ConnectionClosed).
const codeGone = -32000

// failure is the answer to a request that the daemon will not answer. sent says
// whether the daemon may have read it.
func failure(id jsonID, text string, sent bool) []byte {
	effect := "none"
	if sent {
		effect = "unknown"
	}
	return encode(object{"jsonrpc": "2.0", "id": id, "error": object{
		"code": codeGone, "message": text, "data": object{"code": "unavailable", "effect": effect},
	}})
}

// The methods that are part of a session's state: a new connection needs them.
const (
	methodInitialize  = "initialize"
	methodInitialized = "notifications/initialized"
	methodSetLevel    = "logging/setLevel"
	methodListen      = "subscriptions/listen" // of 2026-07-28, which has no initialize
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

// wantsTools reports whether a subscription is for changes of the tools.
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

// levelOf returns the level that logging/setLevel asks for, as a number.
func levelOf(setLevel []byte) int {
	var m struct {
		Params struct {
			Level string `json:"level"`
		} `json:"params"`
	}
	_ = json.Unmarshal(setLevel, &m)
	return level(m.Params.Level)
}

// level orders the levels of MCP, which are those of syslog (RFC 5424).
func level(name string) int {
	for i, l := range []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"} {
		if l == name {
			return i
		}
	}
	return 0
}

// versionOf returns the version of the protocol that an answer to initialize
// names.
func versionOf(answer []byte) string {
	var m struct {
		Result struct {
			ProtocolVersion string `json:"protocolVersion"`
		} `json:"result"`
	}
	_ = json.Unmarshal(answer, &m)
	return m.Result.ProtocolVersion
}

var errTooLong = fmt.Errorf("a message has more than %d bytes", maxMessage)

// reader reads lines.
type reader struct {
	in   *bufio.Reader
	long []byte // room for a line that is longer than in's buffer
}

func newReader(r io.Reader) *reader { return &reader{in: bufio.NewReaderSize(r, 64<<10)} }

// maxRoom bounds the room that is kept for the next long line.
const maxRoom = 4 << 20

// line returns a line with its newline, of at most max bytes; 0 is any number. It
// is valid until the next call.
func (r *reader) line(max int) ([]byte, error) {
	line, err := r.in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		if err != nil && len(line) > 0 {
			return nil, io.ErrUnexpectedEOF // half a message is none
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
