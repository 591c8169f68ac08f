package console

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/fleet/wire"
)

// TestFleetPage: the page has the nodes of the fleet, what waits on another one, and why an agent has no view; it follows them,
// and says when the server is away. It shows how many nodes have signed the head of each log, and what nodes have found. A daemon without a fleet has no such page.
func TestFleetPage(t *testing.T) {
	t.Setenv("FLEET_SECRET", "s3cret")
	opts := server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, Authorization: "s3cret"}
	n, err := server.NewServer(&opts)
	require.NoError(t, err)
	n.Start()
	t.Cleanup(func() { n.Shutdown(); n.WaitForShutdown() })
	require.True(t, n.ReadyForConnections(time.Minute))
	node := func(name string, defs map[string]string) *harness.Host {
		h := harness.LayOut(t, defs)
		h.Put("scopefs.yaml", fmt.Sprintf("fleet: {nats: 'nats://%s', credential: {env: FLEET_SECRET}, name: %s, trust: [], head_every: 1s}\n", n.Addr().(*net.TCPAddr), name))
		return h
	}
	one := node("one", map[string]string{"bob": ""})
	two := node("two", map[string]string{"eve": "tools: ['*']\npolicy: {tools: {ask: [write_file]}}", "broken": "dir: " + filepath.Join(t.TempDir(), "none")})
	one.Must("fleet", "init")
	one.Start()
	s := serve(t, one)
	b := browse(t, s.link, 1280, 900)
	b.reads("Fleet")
	b.load(s.root() + "/fleet")
	b.reads("Nothing waits")
	two.Start()
	b.reads("broken failed")
	two.Connect("eve").Waits("write_file", map[string]any{"path": hostile, "content": "x"})
	b.reads("scopefs fleet approvals approve two")
	text := value[string](b, `document.body.innerText`)
	assert.Contains(t, text, "<img src=x onerror=alert(1)>")
	assert.False(t, strings.ContainsAny(text, "\u202e\u200b\x1b"))
	client, err := nats.Connect(n.ClientURL(), nats.Token("s3cret"))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	js, err := jetstream.New(client)
	require.NoError(t, err)
	kv, err := js.KeyValue(t.Context(), "scopefs_nodes")
	require.NoError(t, err)
	state, err := json.Marshal(wire.Node{Heads: &wire.Heads{Signed: []string{"two"}, Need: 2, Wrong: []wire.Wrong{
		{Node: "two", What: "its log has two histories", Time: time.Now()},
		{Node: hostile, What: "it does not show how its head grows " + hostile, Time: time.Now()},
	}}})
	require.NoError(t, err)
	_, err = kv.Put(t.Context(), "state.three", state)
	require.NoError(t, err)
	other := serve(t, one)
	cookie := enter(t, other.link)
	rows := ""
	one.Eventually("the heads of one and two are signed, and those of three are not", func() bool {
		r, err := http.NewRequest(http.MethodGet, other.root()+"/fleet", nil)
		require.NoError(t, err)
		r.AddCookie(cookie)
		text, err := io.ReadAll(send(t, r).Body)
		require.NoError(t, err)
		rows = string(text)
		of := func(node, cells string) bool {
			return regexp.MustCompile(`<th scope="row">` + node + `</th>.*` + cells + `<td>[^<]*</td></tr>`).MatchString(rows)
		}
		return of("one", `<td class="n">1</td>`) && of("two", `<td class="n">1</td>`) && of("three", `<td class="n failed">1</td>`)
	})
	assert.Regexp(t, `three found at .*<span class="failed">the log of two</span>: its log has two histories`, rows)
	assert.Contains(t, rows, "it does not show how its head grows no&lt;img src=x")
	assert.NotContains(t, rows, "<img src=x")
	assert.False(t, strings.ContainsAny(rows, "\u202e\u200b\x1b"))
	b.reads("its log has two histories")
	b.shot("fleet")
	b.accessible("fleet")
	b.do(chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile, chromedp.EmulateTouch))
	b.shot("fleet-phone")
	assert.True(t, value[bool](b, `document.documentElement.scrollWidth <= innerWidth`), "wider than its window")
	two.Stop()
	b.reads("silent")
	n.Shutdown()
	b.reads("no servers available")
	b.shot("fleet-away")

	alone := harness.NewHost(t, map[string]string{"bob": ""})
	link := serve(t, alone)
	cookie = enter(t, link.link)
	get := func(path string) *http.Response {
		r, err := http.NewRequest(http.MethodGet, link.root()+path, nil)
		require.NoError(t, err)
		r.AddCookie(cookie)
		return send(t, r)
	}
	assert.Equal(t, http.StatusBadRequest, get("/fleet").StatusCode)
}
