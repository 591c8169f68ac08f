package tools

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// A turn is what a scripted model does next: it calls a tool, or answers.
type turn struct {
	tool   string
	input  any    // of the tool; JavaScript for Codex's tool exec
	answer string // without a tool
}

// model is a model's API on loopback. Its script is a function for each turn,
// which gets the result of the turn before.
type model struct {
	url string

	mu      sync.Mutex
	keys    map[string]bool // the keys of the requests
	tools   []string        // that the last request offers
	results []string        // of the turns so far
}

// serveModel serves a model.
func serveModel(t *testing.T, api api, script ...func(last string) turn) *model {
	m, handler := newModel(t, api, script...)
	server := httptest.NewServer(handler)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	m.url = server.URL
	return m
}

// An api is a protocol between programs and models. decode reads the tools and
// results of a request, and encode writes a turn as events.
type api struct {
	path   string
	decode func([]byte) (tools, results []string, err error)
	encode func(int, turn) []map[string]any
	lax    bool // other requests are no error, and get status 404
}

// newModel returns a model and its handler.
func newModel(t *testing.T, api api, script ...func(last string) turn) (*model, http.Handler) {
	m := &model{keys: map[string]bool{}}
	return m, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		m.mu.Lock()
		defer m.mu.Unlock()
		if r.Method == http.MethodHead { // Claude Code tries the connection
			return
		}
		m.keys[cmp.Or(r.Header.Get("X-Api-Key"), r.Header.Get("X-Goog-Api-Key"), r.Header.Get("Authorization"))] = true
		if api.lax && r.URL.Path != api.path {
			http.NotFound(w, r)
			return
		}
		if err == nil && r.URL.Path != api.path {
			err = fmt.Errorf("%s %s is not in the script", r.Method, r.URL)
		}
		var tools, results []string
		if err == nil {
			tools, results, err = api.decode(body)
		}
		if err == nil && api.lax && len(tools) == 0 { // such as for a title of the session
			sendEvents(w, api.encode(0, turn{answer: "a title"}))
			return
		}
		if err == nil {
			m.tools, m.results = tools, results
		}
		if err == nil && len(m.results) >= len(script) {
			err = fmt.Errorf("the script has %d turns, and %d have results", len(script), len(m.results))
		}
		if err != nil {
			t.Errorf("model: %v", err)
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var last string
		if len(m.results) > 0 {
			last = m.results[len(m.results)-1]
		}
		sendEvents(w, api.encode(len(m.results), script[len(m.results)](last)))
	})
}

func sendEvents(w http.ResponseWriter, events []map[string]any) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, event := range events {
		text, _ := json.Marshal(event)
		if event["type"] != nil { // Gemini's have none
			fmt.Fprintf(w, "event: %s\n", event["type"])
		}
		fmt.Fprintf(w, "data: %s\n\n", text)
	}
}

// serveClaude serves the Messages API of Anthropic.
func serveClaude(t *testing.T, script ...func(last string) turn) *model {
	return serveModel(t, messagesAPI, script...)
}

var messagesAPI = api{path: "/v1/messages", decode: messagesIn, encode: messagesOut}

func messagesIn(body []byte) (tools, results []string, err error) {
	var request struct {
		Tools    []struct{ Name string }
		Messages []struct{ Content json.RawMessage }
	}
	err = json.Unmarshal(body, &request)
	for _, t := range request.Tools {
		tools = append(tools, t.Name)
	}
	for _, m := range request.Messages {
		var blocks []struct {
			Type    string
			Content json.RawMessage
		}
		_ = json.Unmarshal(m.Content, &blocks) // a text has none
		for _, b := range blocks {
			if b.Type == "tool_result" {
				results = append(results, textOf(b.Content))
			}
		}
	}
	return tools, results, err
}

func messagesOut(n int, next turn) []map[string]any {
	type object = map[string]any
	block, delta, reason := object{"type": "text", "text": ""}, object{"type": "text_delta", "text": next.answer}, "end_turn"
	if next.tool != "" {
		input, _ := json.Marshal(next.input)
		block = object{"type": "tool_use", "id": fmt.Sprintf("toolu_%d", n), "name": next.tool, "input": object{}}
		delta, reason = object{"type": "input_json_delta", "partial_json": string(input)}, "tool_use"
	}
	usage := object{"input_tokens": 1, "output_tokens": 1}
	return []object{
		{"type": "message_start", "message": object{"id": fmt.Sprintf("msg_%d", n), "type": "message", "role": "assistant", "model": "scripted",
			"content": []any{}, "stop_reason": nil, "usage": usage}},
		{"type": "content_block_start", "index": 0, "content_block": block},
		{"type": "content_block_delta", "index": 0, "delta": delta},
		{"type": "content_block_stop", "index": 0},
		{"type": "message_delta", "delta": object{"stop_reason": reason}, "usage": usage},
		{"type": "message_stop"},
	}
}

// serveCodex serves the Responses API of OpenAI. Codex offers the tool exec, in
// which its own tools and those of MCP servers are functions of JavaScript.
func serveCodex(t *testing.T, script ...func(last string) turn) *model {
	return serveModel(t, responsesAPI, script...)
}

var responsesAPI = api{path: "/v1/responses", decode: responsesIn, encode: responsesOut}

func responsesIn(body []byte) (tools, results []string, err error) {
	type tool struct {
		Name  string
		Tools []tool // of a namespace
	}
	var request struct {
		Tools []tool
		Input []struct {
			Type   string
			Tools  []tool
			Output json.RawMessage
		}
	}
	err = json.Unmarshal(body, &request)
	offered := request.Tools
	for _, item := range request.Input {
		offered = append(offered, item.Tools...)
		if strings.HasSuffix(item.Type, "_call_output") {
			results = append(results, textOf(item.Output))
		}
	}
	for _, t := range offered {
		for _, inner := range t.Tools {
			tools = append(tools, t.Name+"."+inner.Name)
		}
		if len(t.Tools) == 0 {
			tools = append(tools, t.Name)
		}
	}
	return tools, results, err
}

func responsesOut(n int, next turn) []map[string]any {
	type object = map[string]any
	id := fmt.Sprintf("resp_%d", n)
	item := object{"type": "message", "id": id + "m", "role": "assistant", "content": []any{object{"type": "output_text", "text": next.answer}}}
	if next.tool != "" {
		item = object{"type": "custom_tool_call", "id": id + "t", "call_id": fmt.Sprintf("call_%d", n), "name": next.tool, "input": next.input, "status": "completed"}
	}
	usage := object{"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
	return []object{
		{"type": "response.created", "response": object{"id": id}},
		{"type": "response.output_item.done", "output_index": 0, "item": item},
		{"type": "response.completed", "response": object{"id": id, "usage": usage}},
	}
}

// geminiAPI is Google's generateContent with events.
var geminiAPI = api{path: "/v1beta/models/gemini-2.5-pro:streamGenerateContent", decode: contentsIn, encode: contentsOut}

func contentsIn(body []byte) (tools, results []string, err error) {
	var request struct {
		Tools    []struct{ FunctionDeclarations []struct{ Name string } }
		Contents []struct {
			Parts []struct {
				FunctionResponse *struct{ Response json.RawMessage }
			}
		}
	}
	err = json.Unmarshal(body, &request)
	for _, t := range request.Tools {
		for _, f := range t.FunctionDeclarations {
			tools = append(tools, f.Name)
		}
	}
	for _, c := range request.Contents {
		for _, part := range c.Parts {
			if part.FunctionResponse != nil {
				results = append(results, string(part.FunctionResponse.Response))
			}
		}
	}
	return tools, results, err
}

func contentsOut(_ int, next turn) []map[string]any {
	type object = map[string]any
	part := object{"text": next.answer}
	if next.tool != "" {
		part = object{"functionCall": object{"name": next.tool, "args": next.input}}
	}
	return []object{{
		"candidates":    []any{object{"content": object{"role": "model", "parts": []any{part}}, "finishReason": "STOP", "index": 0}},
		"usageMetadata": object{"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
	}}
}

// textOf returns a text, or the texts of a list of content.
func textOf(content json.RawMessage) string {
	var text string
	if json.Unmarshal(content, &text) == nil {
		return text
	}
	var parts []struct{ Text string }
	_ = json.Unmarshal(content, &parts)
	for _, p := range parts {
		text += p.Text
	}
	return text
}
