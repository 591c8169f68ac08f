// Package fleet tests several daemons on one NATS server: what an operator sees of them, and the decisions that they take.
package fleet

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// natsd is a server with JetStream. It keeps its port and its files.
type natsd struct {
	t    testing.TB
	opts server.Options
	s    *server.Server
}

func newServer(t testing.TB) *natsd {
	t.Helper()
	t.Setenv("FLEET_SECRET", "s3cret")
	n := &natsd{t: t, opts: server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, Authorization: "s3cret",
		JetStreamLimits: server.JSLimitOpts{DefaultMaxConsumers: 1}, // as 1,000, the default, for many nodes: fleet init lifts it
	}}
	n.start()
	t.Cleanup(func() { n.kill() })
	return n
}

func (n *natsd) start() {
	n.t.Helper()
	opts := n.opts
	s, err := server.NewServer(&opts)
	require.NoError(n.t, err)
	s.Start()
	require.True(n.t, s.ReadyForConnections(time.Minute))
	n.s, n.opts.Port = s, s.Addr().(*net.TCPAddr).Port
}

func (n *natsd) kill() { n.s.Shutdown(); n.s.WaitForShutdown() }

// client returns a client of the server, until the test ends.
func (n *natsd) client() jetstream.JetStream {
	n.t.Helper()
	conn, err := nats.Connect(n.s.ClientURL(), nats.Token("s3cret"))
	require.NoError(n.t, err)
	n.t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	require.NoError(n.t, err)
	return js
}

const agent = "view: {paths: {'fixed/**': read}, changes: direct}\ntools: ['*']\npolicy: {tools: {ask: [write_file]}}"

// an operator has a key of his own.
type operator struct {
	file, public, private string
}

func newOperator(t *testing.T, h *harness.Host, name string) operator {
	t.Helper()
	o := operator{file: filepath.Join(t.TempDir(), "key")}
	o.public = strings.TrimSpace(h.Must("fleet", "keygen", name, "--key", o.file))
	text, err := os.ReadFile(o.file)
	require.NoError(t, err)
	o.private = string(text)
	return o
}

// newNode lays out a node of the fleet.
func newNode(t *testing.T, n *natsd, name string, operators ...operator) *harness.Host {
	t.Helper()
	h := harness.LayOut(t, map[string]string{"a": agent})
	harness.Plant(t, h.Scope("a"), "fixed/x=1")
	join(h, n, name, operators...)
	return h
}

func join(h *harness.Host, n *natsd, name string, operators ...operator) {
	var trust []string
	for _, o := range operators {
		trust = append(trust, fmt.Sprintf("%q", o.public))
	}
	h.Put("scopefs.yaml", fmt.Sprintf("fleet: {nats: 'nats://127.0.0.1:%d', credential: {env: FLEET_SECRET}, name: %s, trust: [%s]}\n",
		n.opts.Port, name, strings.Join(trust, ", ")))
}

// deny has n events recorded.
func deny(t *testing.T, h *harness.Host, n int) {
	t.Helper()
	for range n {
		f, err := os.OpenFile(filepath.Join(h.View("a"), "fixed", "x"), os.O_WRONLY, 0)
		if err == nil {
			f.Close()
			t.Error("a file that is read alone was opened for writing")
		}
	}
}
