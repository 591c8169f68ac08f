package tools

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
)

// TestStoresService: an agent reaches a service that the operator names, without
// seeing its credential, and another agent does not.
func TestStoresService(t *testing.T) {
	harness.NeedFUSE(t)
	const hush = "t0ken-of-the-operator"
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Method+" "+r.RequestURI+" "+r.Header.Get("Authorization"))
		fmt.Fprintf(w, "you sent %s", r.Header.Get("Authorization"))
	}))
	defer server.Close()
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
	for id, list := range map[string]string{"one": "[http_request]", "two": "[http_request]", "three": "[read_file]"} {
		require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", id+".md"), []byte("---\nname: "+id+"\nuser: \"1000\"\ntools: "+list+"\n---\n"), 0o644))
	}
	secret := filepath.Join(base, "secret")
	require.NoError(t, os.WriteFile(secret, []byte(hush+"\n"), 0o600))
	text := fmt.Sprintf("stores:\n  services:\n    api: {url: %q, agents: [one], addresses: [127.0.0.1], credential: {file: %q}, prefix: 'Bearer '}\n", server.URL+"/v1", secret)
	require.NoError(t, os.WriteFile(filepath.Join(base, "scopefs.yaml"), []byte(text), 0o644))
	run := func(words ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), harness.Program, append([]string{"--base", base}, words...)...).CombinedOutput()
		return string(out), err
	}

	out, err := run("call", "http_request", "service=api", "path=x/y", "--agent", "one", "--json")
	require.NoError(t, err, out)
	assert.Contains(t, out, "you sent Bearer ***")
	assert.Equal(t, []string{"GET /v1/x/y Bearer " + hush}, got)

	for _, words := range [][]string{
		{"call", "http_request", "service=api", "path=../admin", "--agent", "one"},
		{"call", "http_request", "service=api", "path=x", "--agent", "two"},
		{"call", "http_request", "service=api", "path=x", "--agent", "three"},
	} {
		out, err = run(words...)
		assert.Error(t, err, out)
	}
	assert.Len(t, got, 1)

	out, err = run("stores", "--json")
	require.NoError(t, err, out)
	var list []struct {
		Store, Error string
		Agents       []string
	}
	require.NoError(t, json.Unmarshal([]byte(out), &list))
	require.Len(t, list, 1)
	assert.Equal(t, "services.api", list[0].Store)
	assert.Equal(t, []string{"one"}, list[0].Agents)

	out, err = run("audit", "--json")
	require.NoError(t, err)
	assert.NotContains(t, out, hush)
	assert.Contains(t, out, `"verdict":"violation"`)
	out, err = run("agents", "show", "one", "--json")
	require.NoError(t, err, out)
	assert.NotContains(t, out, hush)
}

// TestStoresKV: two agents use the same key and never meet, and an agent that may
// only read sets nothing.
func TestStoresKV(t *testing.T) {
	harness.NeedFUSE(t)
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
	for id, keys := range map[string]string{"a": "", "ab": "", "reader": "view: {access: read}\n", "none": "tools: [read_file]\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", id+".md"), []byte("---\nname: "+id+"\nuser: \"1000\"\n"+keys+"---\n"), 0o644))
	}
	require.NoError(t, os.WriteFile(filepath.Join(base, "scopefs.yaml"), []byte("stores: {kv: {keys: 3}}\n"), 0o644))
	run := func(words ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), harness.Program, append([]string{"--base", base}, words...)...).CombinedOutput()
		return string(out), err
	}
	for _, id := range []string{"a", "ab"} {
		out, err := run("call", "kv_set", "key=b:k", "value=of "+id, "--agent", id)
		require.NoError(t, err, out)
	}
	for _, id := range []string{"a", "ab"} {
		out, err := run("call", "kv_get", "key=b:k", "--agent", id, "--json")
		require.NoError(t, err, out)
		assert.Contains(t, out, `"of `+id+`"`)
		out, err = run("call", "kv_list", "--agent", id, "--json")
		require.NoError(t, err, out)
		assert.Equal(t, 1, strings.Count(out, `"key"`), out)
	}
	out, err := run("call", "kv_get", "key=k", "--agent", "a")
	assert.Error(t, err)
	assert.Contains(t, out, "not_found")
	for _, id := range []string{"reader", "none"} {
		out, err = run("call", "kv_set", "key=k", "value=v", "--agent", id)
		assert.Error(t, err)
		assert.Contains(t, out, `"denied"`)
	}
	for _, key := range []string{"1", "2", "3"} {
		out, err = run("call", "kv_set", "key="+key, "value=v", "--agent", "a")
	}
	assert.Error(t, err)
	assert.Contains(t, out, `"too_large"`)
	out, err = run("stores")
	require.NoError(t, err, out)
	assert.Regexp(t, `kv +sqlite +ok +a,ab,reader +kv_get`, out)
	st, err := os.Stat(filepath.Join(base, "state", "kv.db"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), st.Mode().Perm())
}

// TestStoresSQL: each agent has a database of its own. Its process runs as the agent's
// user and ends with the daemon.
func TestStoresSQL(t *testing.T) {
	harness.NeedFUSE(t)
	base := t.TempDir()
	require.NoError(t, os.Chmod(base, 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
	for id, keys := range map[string]string{"a": "", "ab": "", "reader": "view: {access: read}\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", id+".md"), []byte("---\nname: "+id+"\nuser: \"1000\"\n"+keys+"---\n"), 0o644))
	}
	require.NoError(t, os.WriteFile(filepath.Join(base, "scopefs.yaml"), []byte("stores: {sql: {timeout: 5s}}\n"), 0o644))
	run := func(words ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), harness.Program, append([]string{"--base", base}, words...)...).CombinedOutput()
		return string(out), err
	}
	for _, id := range []string{"a", "ab"} {
		out, err := run("call", "create_table", "--agent", id, "--args", `{"name": "notes", "columns": [{"name": "text", "type": "TEXT"}]}`)
		require.NoError(t, err, out)
		out, err = run("call", "sql_execute", "--agent", id, "--args", `{"sql": "INSERT INTO notes VALUES (?)", "params": ["of `+id+`"]}`)
		require.NoError(t, err, out)
	}
	for _, id := range []string{"a", "ab"} {
		out, err := run("call", "sql_query", "sql=SELECT text FROM notes", "--agent", id, "--json")
		require.NoError(t, err, out)
		assert.Contains(t, out, `"of `+id+`"`)
		assert.Equal(t, 1, strings.Count(out, "of a"), out)
		st, err := os.Stat(filepath.Join(base, "state", "db", "agent_"+id+".db"))
		require.NoError(t, err)
		assert.EqualValues(t, 1000, st.Sys().(*syscall.Stat_t).Uid)
		assert.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	}
	for _, statement := range []string{
		"ATTACH '" + filepath.Join(base, "state", "db", "agent_ab.db") + "' AS n",
		"SELECT readfile('/etc/passwd')", "PRAGMA writable_schema = 1", "VACUUM INTO '/tmp/x'", "DROP TABLE notes", "SELECT 1; SELECT 2",
	} {
		out, err := run("call", "sql_execute", "sql="+statement, "--agent", "a")
		assert.Error(t, err, "%s: %s", statement, out)
	}
	out, err := run("call", "sql_execute", "sql=CREATE TABLE x (a)", "--agent", "reader")
	assert.Error(t, err)
	assert.Contains(t, out, `"denied"`)
}

// TestStoresDelegated: a member in a task has at most the store tools of its caller, and
// its own part of the store.
func TestStoresDelegated(t *testing.T) {
	h := harness.Delegating(t, "stores: {kv: {}, sql: {}}\n", map[string]string{
		"a": "tools: [delegate, kv_get, sql_query]\nmembers: [b]", "b": "tools: ['*']\npolicy: {tools: {exclude: [sql_query]}}",
	})
	b := h.Connect("b")
	b.Call("kv_set", args{"key": "k", "value": "of b"})
	b.Call("sql_execute", args{"sql": "CREATE TABLE t (x)"})
	assert.Equal(t, tools.Denied, b.Fails("sql_query", args{"sql": "SELECT 1"}).Code)
	told := h.Connect("a").Text("delegate", args{"member": "b", "task": `
scopefs call kv_get key=k --json
scopefs call kv_set key=k value=owned
scopefs call kv_delete key=k
scopefs call sql_query 'sql=SELECT 1'
scopefs call sql_execute 'sql=DROP TABLE t'
scopefs call kv_get key=k --json`})
	assert.Equal(t, 2, strings.Count(told, "of b"), told)
	assert.Equal(t, 4, strings.Count(told, `"denied"`), told)
	assert.Equal(t, "of b", b.Call("kv_get", args{"key": "k"})["value"])
}
