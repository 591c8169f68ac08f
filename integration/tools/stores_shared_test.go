package tools

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/servertest"
)

const serverSecret = "s3cret-of-the-servers"

// twoHosts returns two daemons, each with a base of its own, that have the same stores. In text, %[1]q is the path of a
// file with the servers' secret.
func twoHosts(t *testing.T, agents map[string]string, text string) (one, two *harness.Host) {
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte(serverSecret+"\n"), 0o600))
	start := func() *harness.Host {
		h := harness.LayOut(t, agents)
		h.Put("scopefs.yaml", strings.ReplaceAll(text, "SECRET", secret))
		h.Start()
		return h
	}
	return start(), start()
}

// TestStoresPostgres: agents divide a PostgreSQL database by roles, which no statement escapes. An agent finds its rows on another
// host, and the end of the server costs it calls of this store alone.
func TestStoresPostgres(t *testing.T) {
	need.Once(t)
	p := servertest.StartPostgres(t, serverSecret)
	long := strings.Repeat("x", 58)
	one, two := twoHosts(t, map[string]string{"a": "", "a-b": "", "reader": "view: {access: read}", long: ""}, fmt.Sprintf(`stores:
  kv:
  sql: {postgres: "postgres://scopefs@127.0.0.1:%s/agents", password: {file: SECRET}, drop: true}
`, p.Port))
	users := map[string]*harness.User{"a": one.Connect("a"), "a-b": one.Connect("a-b")}
	a := users["a"]
	for id, u := range users {
		u.Call("create_table", args{"name": "Notes", "columns": []args{{"name": "id", "type": "INTEGER PRIMARY KEY AUTOINCREMENT"}, {"name": "text", "type": "TEXT", "not_null": true}, {"name": "done", "type": "BOOLEAN DEFAULT 0"}}})
		assert.Equal(t, 1.0, u.Call("sql_execute", args{"sql": "INSERT INTO notes (text) VALUES ($1)", "params": []any{"of " + id}})["changes"])
	}
	assert.Equal(t, "conflict", string(a.Fails("create_table", args{"name": "notes", "columns": []args{{"name": "x", "type": "TEXT"}}}).Code))
	for _, text := range servertest.PostgresAttacks {
		for _, tool := range []string{"sql_execute", "sql_query"} {
			assert.Contains(t, []string{"denied", "invalid"}, string(a.Fails(tool, args{"sql": text}).Code), text)
		}
	}
	for id, u := range map[string]*harness.User{"a": two.Connect("a"), "a-b": two.Connect("a-b")} {
		assert.Equal(t, []any{[]any{1.0, "of " + id, 0.0}}, u.Call("sql_query", args{"sql": "SELECT * FROM notes"})["rows"])
		assert.Len(t, u.Call("sql_tables", nil)["tables"], 1)
		u.Call("sql_execute", args{"sql": "UPDATE notes SET text = 'moved'"})
	}
	assert.Equal(t, []any{[]any{"moved"}}, a.Call("sql_query", args{"sql": "SELECT text FROM notes"})["rows"])

	reader := one.Connect("reader")
	assertAbsent(reader, "reader", "sql_execute", args{"sql": "CREATE TABLE t (a int)"})
	assert.Equal(t, []any{[]any{1.0}}, reader.Call("sql_query", args{"sql": "SELECT 1"})["rows"])
	assert.Equal(t, "unavailable", string(one.Connect(long).Fails("sql_query", args{"sql": "SELECT 1"}).Code))
	assert.Regexp(t, `sql +postgres +ok +a,a-b,reader`, one.Must("stores"))

	// What forget leaves on the server, the command of its line removes, and nothing of others.
	two.Must("down", "a-b")
	left, _, _ := two.Try("forget", "a-b")
	_, command, ok := strings.Cut(strings.TrimSpace(left), "leave   schema agent_a-b, roles agent_a-b and login_a-b in PostgreSQL, if it was used: ")
	require.True(t, ok, left)
	command, _, _ = strings.Cut(command, "\n")
	psql := exec.Command("sh", "-c", command)
	psql.Env = append(os.Environ(), "PGPASSWORD="+serverSecret)
	text, err := psql.CombinedOutput()
	require.NoError(t, err, "%s: %s", command, text)
	assert.Empty(t, users["a-b"].Call("sql_tables", nil)["tables"])
	assert.Len(t, a.Call("sql_tables", nil)["tables"], 1)

	p.Kill()
	assert.Equal(t, "unavailable", string(a.Fails("sql_query", args{"sql": "SELECT 1"}).Code))
	a.Call("kv_set", args{"key": "k", "value": "v"})
	stores, errs, code := one.Try("stores")
	assert.Equal(t, 1, code, stores)
	p.Start(t)
	assert.Equal(t, []any{[]any{"moved"}}, a.Call("sql_query", args{"sql": "SELECT text FROM notes"})["rows"])
	for _, text := range []string{one.Must("audit", "--json"), one.Must("ps", "--json"), stores, errs, a.Heard.String()} {
		assert.NotContains(t, text, serverSecret)
	}
}

// startRedis returns the path of a server's socket.
func startRedis(t *testing.T) (socket string) {
	dir, err := os.MkdirTemp("", "redis") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	program, socket := need.Program(t, "redis-server"), filepath.Join(dir, "s")
	servertest.Start(t, func() *exec.Cmd {
		return exec.Command(program, "--port", "0", "--unixsocket", socket, "--dir", dir, "--save", "")
	}, func() bool {
		_, err := os.Stat(socket)
		return err == nil
	})
	return socket
}

// startNATS returns the address of a server.
func startNATS(t *testing.T) string {
	nats, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	require.NoError(t, err)
	nats.Start()
	t.Cleanup(func() { nats.Shutdown(); nats.WaitForShutdown() })
	return "nats://" + nats.Addr().String()
}

// TestStoresShared: an agent finds its keys, messages, objects and points on another host that has the same servers, and another
// agent finds its own.
func TestStoresShared(t *testing.T) {
	need.Once(t)
	redis, nats := startRedis(t), startNATS(t)
	objects, metrics := servertest.StartObjects(t, serverSecret), servertest.StartMetrics(t, t.TempDir(), serverSecret)
	one, two := twoHosts(t, map[string]string{"a": "", "ab": ""}, fmt.Sprintf(`stores:
  kv: {redis: %q}
  messages: {url: %q}
  objects: {url: "http://%s", bucket: store, access_key: operator, secret_key: {file: SECRET}, addresses: [127.0.0.1]}
  metrics: {url: "http://%s", user: scopefs, credential: {file: SECRET}}
`, redis, nats, objects.Address, metrics.Address))
	for _, id := range []string{"a", "ab"} {
		u := one.Connect(id)
		u.Call("kv_set", args{"key": "k", "value": "of " + id})
		u.Call("publish", args{"subject": "s", "text": "of " + id})
		u.Call("object_put", args{"key": "k", "content": "of " + id})
		u.Call("metrics_write", args{"points": []args{{"measurement": "m", "fields": args{"v": "of " + id}}}})
	}
	for _, id := range []string{"a", "ab"} {
		u := two.Connect(id)
		assert.Equal(t, "of "+id, u.Call("kv_get", args{"key": "k"})["value"])
		assert.Equal(t, "of "+id, u.Call("object_get", args{"key": "k"})["content"])
		for tool, in := range map[string]args{"subscribe": {"subject": "s"}, "metrics_query": {"measurement": "m", "fields": []args{{"name": "v"}}}} {
			text := fmt.Sprintf("%q", u.Call(tool, in))
			assert.Contains(t, text, `"of `+id+`"`, tool)
			assert.Equal(t, 1, strings.Count(text, `"of `), tool)
		}
	}
}
