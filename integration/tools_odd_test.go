package integration

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSocketOdd: every method with every shape of parameters, before and after
// the greeting, of every protocol version: the daemon lives.
func TestSocketOdd(t *testing.T) {
	t.Parallel()
	h := newHost(t, map[string]string{"a": ""})
	u := h.connect("a")
	modern := `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	params := []string{
		"", "null", "{}", "[]", `"x"`, "0", `{"name":null}`, `{"name":"stat"}`, `{"name":"stat","arguments":null}`, `{"name":"stat","arguments":[]}`,
		`{"name":"stat","arguments":"x"}`, `{"name":"","arguments":{}}`, `{"name":"stat","arguments":{"path":"."},"_meta":{"progressToken":{}}}`,
		`{"name":"stat","arguments":{"path":"."},"_meta":{"progressToken":1}}`, `{"name":"stat","arguments":{"path":"."},"inputResponses":{"answer":null}}`,
		`{"name":"ask_user","arguments":{"question":"x"},"inputResponses":{"answer":{"action":"accept"}},"requestState":"x"}`,
		`{"requestId":null}`, `{"requestId":1}`, `{"cursor":"x"}`, `{"uri":"file:///etc/passwd"}`, `{"level":"x"}`, `{"ref":{"type":"x"},"argument":{}}`,
		`{"progressToken":1,"progress":1}`, `{"protocolVersion":"9"}`, `{"protocolVersion":"2025-06-18","capabilities":null,"clientInfo":null}`,
		`{"notifications":{"toolsListChanged":true}}`, modern + "}", modern + `,"name":"stat","arguments":{"path":"."}}`, modern + `,"notifications":{"toolsListChanged":true}}`,
	}
	methods := []string{
		"initialize", "server/discover", "ping", "tools/list", "tools/call", "resources/list", "resources/read", "resources/subscribe", "resources/unsubscribe",
		"resources/templates/list", "prompts/list", "prompts/get", "completion/complete", "logging/setLevel", "subscriptions/listen", "sampling/createMessage",
		"roots/list", "elicitation/create", "notifications/initialized", "notifications/cancelled", "notifications/progress", "notifications/roots/list_changed",
		"notifications/tools/list_changed", "rpc.discover", "",
	}
	for _, method := range methods {
		for _, greeted := range []bool{false, true} {
			h.odd(method, greeted, params, `"id":%d,`, "")
			for _, id := range []string{`"id":null,`, `"id":{},`, `"id":"x","id":7,`, `"id":1e99,`} {
				h.odd(method, greeted, params[:1], id)
			}
		}
		h.eventually("the daemon answers: "+method, func() bool { _, _, code := h.try("ps"); return code == 0 })
	}
	h.eventually("they have gone", func() bool { return len(h.agent("a").Sandboxes) <= 1 })
	assert.Equal(t, "here", u.bash("echo here"))
}

// odd says a method with all params and ids on one connection, and waits until
// it is answered or hung up on.
func (h *host) odd(method string, greeted bool, params []string, ids ...string) {
	h.t.Helper()
	r := h.dial("a")
	defer r.Close()
	if greeted {
		r.greet()
	}
	for i, p := range params {
		if p != "" {
			p = `,"params":` + p
		}
		for _, id := range ids {
			id = strings.Replace(id, "%d", itoa(i), 1)
			fmt.Fprintf(r, `{"jsonrpc":"2.0",%s"method":%q%s}`+"\n", id, method, p)
		}
	}
	io.WriteString(r, `{"jsonrpc":"2.0","id":"end","method":"ping"}`+"\n")
	for {
		line, err := r.in.ReadString('\n')
		if err != nil || strings.Contains(line, `"end"`) {
			require.NotErrorIs(h.t, err, os.ErrDeadlineExceeded, "%s is not answered", method)
			return
		}
	}
}
