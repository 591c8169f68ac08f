package stores

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/servertest"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
)

// calls are arguments that each tool of a store takes.
var calls = map[string]string{
	"kv_get": `{"key":"k"}`, "kv_set": `{"key":"k","value":"v"}`, "kv_delete": `{"key":"k"}`, "kv_list": `{}`,
	"sql_query": `{"sql":"SELECT 1"}`, "sql_execute": `{"sql":"CREATE TABLE t (a TEXT)"}`, "sql_tables": `{}`,
	"create_table": `{"name":"t","columns":[{"name":"a","type":"TEXT"}]}`,
	"publish":      `{"subject":"s","text":"x"}`, "subscribe": `{}`,
	"http_request": `{"service":"s","path":"x"}`, "notify": `{"channel":"c","content":"x"}`,
	"object_get": `{"key":"k"}`, "object_put": `{"key":"k","content":"x"}`, "object_delete": `{"key":"k"}`, "object_list": `{}`,
	"metrics_write": `{"points":[{"measurement":"m","fields":{"v":1}}]}`, "metrics_query": `{"measurement":"m","fields":[{"name":"v"}]}`,
}

// everyStore configures all stores on one server, which counts its connections and
// answers nothing.
func everyStore(t *testing.T) (config.Stores, *atomic.Int32) {
	var connections atomic.Int32
	address := servertest.Answer(t, func(net.Conn) { connections.Add(1) })
	at := func(scheme string) *url.URL { return &url.URL{Scheme: scheme, Host: address} }
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	secret := &credential.Source{Env: "PATH"}
	return config.Stores{
		KV: &config.KVStore{Redis: address}, SQL: &config.SQLStore{}, Messages: &config.MessagesStore{URL: at("nats").String()},
		Metrics:  &config.MetricsStore{URL: at("http"), Version: 1},
		Services: map[string]config.Service{"s": {URL: at("http").String(), Addresses: loopback}},
		Notify:   map[string]config.Channel{"c": {Kind: "webhook", URL: at("http"), Addresses: loopback}},
		Objects:  &config.ObjectStore{URL: at("http"), Bucket: "bucket", AccessKey: "k", SecretKey: secret, Addresses: loopback},
	}, &connections
}

// TestDoor: a call of a store that the agent may not make, that nobody has approved, or
// that cannot be recorded reaches no server and makes no file.
func TestDoor(t *testing.T) {
	config, connections := everyStore(t)
	state := t.TempDir()
	s := New(config, state, Host{})
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	list, err := s.Tools()
	require.NoError(t, err)
	known, err := Known(config)
	require.NoError(t, err)
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
	for id, head := range map[string]string{"free": "", "asks": "policy: {tools: {ask: [\"*\"]}}\n", "none": "tools: []\n", "out": "policy: {tools: {exclude: [\"*\"]}}\n", "reader": "view: {access: read}\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", id+".md"), []byte("---\nname: "+id+"\n"+head+"---\n"), 0o644))
	}
	all, errs := agents.Load(base, agents.Host{Tools: known})
	require.Empty(t, errs)
	for id, a := range all.Agents {
		set, err := tools.NewSet(tools.Gate{
			Agent: id, Session: "s", Rules: func() tools.Rules { return a.Grants }, Approvals: approvals.NewSet(nil),
			Record: func(_ context.Context, e audit.Event) error {
				if id == "free" {
					return errors.New("the log is full")
				}
				return nil
			},
		}, list...)
		require.NoError(t, err)
		for _, one := range list {
			require.Contains(t, calls, one.Name)
			if id == "reader" && !one.Hints.Writes {
				continue
			}
			_, err := set.Call(t.Context(), tools.Call{Tool: one.Name, Args: json.RawMessage(calls[one.Name])})
			e, ok := errors.AsType[*tools.Error](err)
			require.True(t, ok, "%s: %s: %v", id, one.Name, err)
			want := map[scope.ID]tools.Code{"free": tools.Unavailable, "asks": tools.ApprovalRequired}[id]
			if want == "" {
				want = tools.Denied
			}
			assert.Equal(t, want, e.Code, "%s: %s: %v", id, one.Name, err)
		}
	}
	assert.Zero(t, connections.Load())
	made, err := os.ReadDir(state)
	require.NoError(t, err)
	assert.Empty(t, made)
}

// TestPasswordOnTheWay: a password goes to another host by TLS alone.
func TestPasswordOnTheWay(t *testing.T) {
	for address, ok := range map[string]bool{"/run/redis": true, "127.0.0.1:1": true, "[::1]:1": true, "localhost:1": true, "10.0.0.5:1": false, "redis.example:1": false} {
		_, err := New(config.Stores{KV: &config.KVStore{Redis: address, Password: &credential.Source{Env: "X"}}}, t.TempDir(), Host{}).Tools()
		assert.Equal(t, ok, err == nil, address)
	}
}
