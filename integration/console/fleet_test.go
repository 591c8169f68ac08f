package console

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestFleetPage: the page has the nodes of the fleet, what waits on another one, and why an agent has no view; it follows them,
// and says when the server is away. A daemon without a fleet has no such page.
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
		h.Put("scopefs.yaml", fmt.Sprintf("fleet: {nats: 'nats://%s', credential: {env: FLEET_SECRET}, name: %s, trust: []}\n", n.Addr().(*net.TCPAddr), name))
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
	cookie := enter(t, link.link)
	get := func(path string) *http.Response {
		r, err := http.NewRequest(http.MethodGet, link.root()+path, nil)
		require.NoError(t, err)
		r.AddCookie(cookie)
		return send(t, r)
	}
	assert.Equal(t, http.StatusBadRequest, get("/fleet").StatusCode)
}
