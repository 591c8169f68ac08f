package tools

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestSocketOdd: every method with every shape of parameters, before and after
// the greeting, of every protocol version: the daemon lives.
func TestSocketOdd(t *testing.T) {
	need.Once(t)
	t.Parallel()
	h := harness.NewHost(t, map[string]string{"a": ""})
	u := h.Connect("a")
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
			sendOdd(h, method, greeted, params, `"id":%d,`, "")
			for _, id := range []string{`"id":null,`, `"id":{},`, `"id":"x","id":7,`, `"id":1e99,`} {
				sendOdd(h, method, greeted, params[:1], id)
			}
		}
		h.Eventually("the daemon answers: "+method, func() bool { _, _, code := h.Try("ps"); return code == 0 })
	}
	h.Eventually("they have gone", func() bool { return len(h.Agent("a").Sandboxes) <= 1 })
	assert.Equal(t, "here", u.Bash("echo here"))
}

// sendOdd says a method with all params and ids on one connection, and waits until
// it is answered or hung up on.
func sendOdd(h *harness.Host, method string, greeted bool, params []string, ids ...string) {
	h.T.Helper()
	r := h.Dial("a")
	defer r.Close()
	if greeted {
		r.Greet()
	}
	for i, p := range params {
		if p != "" {
			p = `,"params":` + p
		}
		for _, id := range ids {
			id = strings.Replace(id, "%d", strconv.Itoa(i), 1)
			fmt.Fprintf(r, `{"jsonrpc":"2.0",%s"method":%q%s}`+"\n", id, method, p)
		}
	}
	io.WriteString(r, `{"jsonrpc":"2.0","id":"end","method":"ping"}`+"\n")
	for {
		line, err := r.In.ReadString('\n')
		if err != nil || strings.Contains(line, `"end"`) {
			require.NotErrorIs(h.T, err, os.ErrDeadlineExceeded, "%s is not answered", method)
			return
		}
	}
}
