package upstream

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools"
)

// raw is a minimal server, written without the SDK.
func raw() int {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct{ Arguments said }
		}
		if err := json.Unmarshal(in.Bytes(), &m); err != nil || m.ID == nil {
			continue
		}
		answer := `"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"}}`
		switch m.Method {
		case "tools/list":
			answer = os.Getenv("LIST")
		case "tools/call":
			if os.Getenv(role) == "deaf" {
				continue
			}
			answer = strings.ReplaceAll(m.Params.Arguments.Text, "MANY", strings.Repeat(`{"a":1},`, 100_000))
		}
		fmt.Printf(`{"jsonrpc":"2.0","id":%s,%s}`+"\n", m.ID, answer)
	}
	return 0
}

// restless is a server that changes its list after each tools/list.
func restless() int {
	for n, in := 0, bufio.NewScanner(os.Stdin); in.Scan(); {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		if err := json.Unmarshal(in.Bytes(), &m); err != nil || m.ID == nil {
			continue
		}
		answer := `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"raw","version":"1"}}`
		if m.Method == "tools/list" {
			n++
			answer = fmt.Sprintf(`{"tools":[{"name":"t%d","inputSchema":{"type":"object"}}]}`, n)
		}
		fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", m.ID, answer)
		if m.Method == "tools/list" {
			fmt.Println(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		}
	}
	return 0
}

// TestRestlessServer requires that the interval between listings grows.
func TestRestlessServer(t *testing.T) {
	need.Long(t, "waits until a server may be listed again")
	t.Parallel()
	f := start(t, "restless")
	f.rest = 300 * time.Millisecond
	var mu sync.Mutex
	var times []time.Time
	var last []string
	f.OnChange = func() {
		names := f.names(t)
		mu.Lock()
		defer mu.Unlock()
		times, last = append(times, time.Now()), names
	}
	f.names(t)
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(times) == 3
	}, 20*time.Second, 10*time.Millisecond)
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, []string{"mcp:restless:t4"}, last, "each change is seen")
	assert.GreaterOrEqual(t, times[1].Sub(times[0]), f.rest)
	assert.GreaterOrEqual(t, times[2].Sub(times[1]), 2*f.rest)
}

// TestNothingThatAServerSaysEndsUs sends malformed results: one daemon serves all
// agents and must survive each of them.
func TestNothingThatAServerSaysEndsUs(t *testing.T) {
	need.Long(t, "starts a server for each answer")
	t.Parallel()
	answers := []string{
		`"result":null`, `"result":7`, `"result":[]`, `"result":{}`, `"result":{"content":null}`, `"result":{"content":[null]}`,
		`"result":{"content":{}}`, `"result":{"content":[{"type":"image","data":"?"}]}`, `"result":{"content":[{"type":"resource"}]}`,
		`"result":{"content":[{"type":"resource","resource":null}]}`, `"result":{"content":[{"type":"tool_result","content":[null]}]}`,
		`"result":{"content":[{"type":"tool_use","name":"x"}]}`, `"result":{"content":[{"type":7}]}`, `"result":{"isError":7}`,
		`"result":{"content":[],"structuredContent":[1]}`, `"result":{"_meta":7,"content":[]}`, `"result":{"content":[{"type":"text","annotations":[]}]}`,
		`"result":{"resultType":"input_required","inputRequests":{"a":null}}`, `"result":{"resultType":"input_required"}`,
		`"result":{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create"}}}`,
		`"result":{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list","params":null}}}`,
		`"error":null`, `"error":7`, `"error":{}`, `"error":{"code":"x"}`, `"error":{"code":1e99,"message":"x"}`, `"error":{"code":1,"message":"x","data":{}}`,
		`"result":{},"error":{"code":1,"message":"x"}`, `"method":"ping","result":{"content":[]},"error":{"code":1,"message":""}`,
	}
	for some := range slices.Chunk(answers, 4) { // after a malformed result it waits to see if the server ends
		t.Run(some[0], func(t *testing.T) {
			t.Parallel()
			f := start(t, "raw", "good")
			f.pause = 0
			for _, answer := range some {
				_, err := f.run(t.Context(), "raw", "x", answer)
				t.Log(answer, err)
			}
			_, err := f.run(t.Context(), "good", "mangle", "")
			require.NoError(t, err)
			text, err := f.run(t.Context(), "good", "echo", "still here")
			require.NoError(t, err)
			assert.Equal(t, "still here", text)
		})
	}
}

func TestOddLists(t *testing.T) {
	t.Parallel()
	many := strings.TrimSuffix(strings.Repeat(`{"name":"t"},`, maxTools+1), ",")
	for list, want := range map[string]struct {
		names []string
		err   string
	}{
		`"result":{"tools":[]}`:                                               {},
		`"result":{"tools":null}`:                                             {},
		`"result":{"tools":[null,{"name":"a"}]}`:                              {names: []string{"mcp:raw:a"}},
		`"result":{"tools":[{"name":"b","inputSchema":7},{"name":"a"}]}`:      {names: []string{"mcp:raw:a", "mcp:raw:b"}},
		`"result":{"tools":[{"name":"a"},{"name":"a"}]}`:                      {names: []string{"mcp:raw:a"}, err: "two tools"},
		`"result":{"tools":[{"name":"a:b"},{"name":"c"}]}`:                    {names: []string{"mcp:raw:c"}, err: `"a:b"`},
		`"result":{"tools":[{"name":"a"}],"nextCursor":"again"}`:              {err: "or 20 pages"},
		`"result":{"tools":[` + many + `]}`:                                   {err: "more than 512 tools"},
		`"result":{"tools":7}`:                                                {err: `MCP server "raw"`},
		`"error":{"code":-32601,"message":"none"}`:                            {err: "none"},
		`"result":{"tools":[{"name":"a","inputSchema":{"$ref":"#"}}]}`:        {names: []string{"mcp:raw:a"}},
		`"result":{"tools":[{"name":"a","annotations":{"title":"x\u001b"}}]}`: {names: []string{"mcp:raw:a"}},
	} {
		t.Run(list[:min(len(list), 60)], func(t *testing.T) {
			t.Parallel()
			f := start(t)
			f.allowed.Store(&map[string]Spec{"raw": {Command: os.Args[0], Env: map[string]string{role: "raw", "LIST": list}}})
			got, errs := f.Tools(t.Context())
			var names []string
			for _, tool := range got {
				names = append(names, tool.Name)
			}
			assert.Equal(t, want.names, names)
			if want.err == "" {
				assert.Empty(t, errs)
			} else if assert.Len(t, errs, 1) {
				assert.ErrorContains(t, errs[0], want.err)
			}
		})
	}
}

// TestManyValues refuses a message that would decode into forty times its size.
func TestManyValues(t *testing.T) {
	f := start(t, "raw")
	f.pause = 0
	_, err := f.run(t.Context(), "raw", "x", `"result":{"content":[],"structuredContent":{"x":[MANY1]}}`)
	assert.Contains(t, codeIs(t, tools.TooLarge, err).Message, "50000 values")
}
