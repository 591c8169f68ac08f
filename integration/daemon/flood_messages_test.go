package daemon

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// messageFlood is a client that sends first, and then again and again the same messages. It reads nothing, unless reads. If its
// connection ends it opens another one, unless it sends an MCP handshake first.
type messageFlood struct {
	first, again string
	clients      int
	reads        bool
}

// post is a request over HTTP with a body, or without one.
func post(method, body, fields string) string {
	return fmt.Sprintf("%s /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"+
		"%sContent-Length: %d\r\n\r\n%s", method, fields, len(body), body)
}

// messageFloods are the kinds of messages that are no calls, and calls that are refused before they have a turn.
func messageFloods() map[string]messageFlood {
	y := func(n int) string { return strings.Repeat("y", n) }
	note := func(size int) string {
		return `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"` + y(size) + `","progress":1}}` + "\n"
	}
	// The answers fill the socket, and the second initialize waits until it can write its own.
	blocked := harness.Hello
	for n := range 30 {
		blocked += fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/list"}`+"\n", 1000+n)
	}
	blocked += strings.Replace(harness.Hello, `"hello"`, `"again"`, 1)
	return map[string]messageFlood{
		"notifications of 4 MiB": {blocked, note(4 << 20), 2, false},
		"small notifications":    {blocked, strings.Repeat(note(10), 400), 2, false},
		"cancellations":          {blocked, strings.Repeat(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`+"\n", 200), 8, false},
		"pings":                  {blocked, strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"ping"}`+"\n", 200), 8, false},
		"responses":              {blocked, strings.Repeat(`{"jsonrpc":"2.0","id":1,"result":{"x":"`+y(60000)+`"}}`+"\n", 4), 8, false},
		"no JSON":                {harness.Hello, y(60000) + "\n", 8, false},
		"long ids":               {harness.Hello, `{"jsonrpc":"2.0","id":"` + y(2<<20) + `","method":"ping"}` + "\n", 8, false},
		"halves of messages":     {harness.Hello + `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + y(15<<20), "", 8, false},
		"lists":                  {harness.Hello, strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`+"\n", 20), 8, true},
		"3,000 levels":           {harness.Hello, strings.Repeat(harness.Request(1, "read_file", `{"path":`+strings.Repeat("[", 3000)+strings.Repeat("]", 3000)+`}`), 10), 8, true},
		"calls of 15 MiB":        {harness.Hello, harness.Request(1, "read_file", `{"path":"`+y(15<<20)+`"}`), 8, true},
		"HTTP batches of 20,000": {"", post("POST", "["+strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"ping"},`, 19_999)+`{}]`, ""), 8, true},
		"HTTP bodies of 15 MiB":  {"", post("POST", harness.Request(1, "read_file", `{"path":"`+y(15<<20)+`"}`), ""), 8, true},
		"HTTP heads of 60 KiB":   {"", post("PUT", "", "X: "+y(60_000)+"\r\n"), 8, true},
		"calls of 60 KiB":        {harness.Hello, harness.Request(1, "read_file", `{"path":["`+y(60000)+`"]}`), 8, true},
	}
}

func init() {
	// A flood of messages to an agent's socket: arguments are the socket and the kind.
	harness.Roles["flood-messages"] = func(args []string) error {
		startMessages(args[0], messageFloods()[args[1]])
		fmt.Println("ready")
		return wait()
	}
}

// startMessages starts the clients of a flood on a socket.
func startMessages(door string, f messageFlood) (stop func(), sent *atomic.Int64) {
	var clients sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	sent = new(atomic.Int64)
	client := func() error {
		conn, err := net.Dial("unix", door)
		if err != nil {
			return err
		}
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		defer conn.Close()
		if f.reads {
			clients.Go(func() { _, _ = io.Copy(io.Discard, conn) })
		}
		n, err := io.WriteString(conn, f.first)
		for sent.Add(int64(n)); err == nil && f.again != ""; sent.Add(int64(n)) {
			n, err = io.WriteString(conn, f.again)
		}
		if err == nil {
			<-ctx.Done()
		}
		return nil
	}
	for range f.clients {
		clients.Go(func() {
			for client() == nil && f.first == "" && ctx.Err() == nil {
			}
		})
	}
	return func() {
		cancel()
		clients.Wait()
	}, sent
}

// maxFlooded is by how much a flood may raise the daemon's memory, in KiB.
const maxFlooded = 64 << 10

// TestFloodMessages: clients that send messages without reading are held. They take no memory of the daemon beyond a bound,
// their sessions end with them, and their neighbour is served.
func TestFloodMessages(t *testing.T) {
	need.Once(t)
	for name, f := range messageFloods() {
		t.Run(name, func(t *testing.T) {
			h := floodHost(t, "")
			r := h.Dial("calm").Greet()
			measureCalls(h, r, 20)
			daemon := h.Cmd.Process.Pid
			before, most := memoryOf(daemon), 0
			stop, sent := startMessages(h.Door("loud"), f)
			for began := time.Now(); time.Since(began) < time.Duration(need.Rounds("SCOPEFS_TEST_ROUNDS", 1, 6))*time.Second && most < maxFlooded; { // the measure itself
				measureCalls(h, r, 10)
				most = max(most, memoryOf(daemon)-before)
			}
			stop()
			if f.first == "" { // what requests over HTTP share outlives them by a minute
				h.Must("down", "loud")
			}
			assert.Less(t, most, maxFlooded, "KiB, after %d MiB", sent.Load()>>20)
			t.Logf("%d -> %d MiB after %d MiB", before>>10, (before+most)>>10, sent.Load()>>20)
			h.Eventually("the sessions end with their clients", func() bool { return len(h.Agent("loud").Sandboxes) == 0 })
		})
	}
}

// TestClientsLeaveNothing: clients come and go, and the daemon's memory stays.
func TestClientsLeaveNothing(t *testing.T) {
	need.Once(t)
	t.Parallel()
	h := floodHost(t, "")
	come := func(clients int) int {
		for range clients {
			r := h.Dial("loud").Greet()
			_, err := io.WriteString(r, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`+"\n"+harness.Request(2, "stat", `{"path":"f"}`))
			require.NoError(t, err)
			r.Line()
			r.Line()
			r.Close()
		}
		h.Eventually("they are gone", func() bool { return len(h.Agent("loud").Sandboxes) == 0 })
		return memoryOf(h.Cmd.Process.Pid)
	}
	first := come(40)
	last := come(need.Rounds("SCOPEFS_TEST_ROUNDS", 60, 120))
	t.Logf("%d MiB, %d MiB", first>>10, last>>10)
	assert.Less(t, last-first, 12<<10, "KiB")
}
