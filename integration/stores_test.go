package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestStoresService: an agent reaches a service that the operator names, without
// seeing its credential, and another agent does not.
func TestStoresService(t *testing.T) {
	needFUSE(t)
	const hush = "t0ken-of-the-operator"
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Method+" "+r.RequestURI+" "+r.Header.Get("Authorization"))
		fmt.Fprintf(w, "you sent %s", r.Header.Get("Authorization"))
	}))
	defer server.Close()
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
	for id, tools := range map[string]string{"one": "[http_request]", "two": "[http_request]", "three": "[read_file]"} {
		require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", id+".md"), []byte("---\nname: "+id+"\nuser: \"1000\"\ntools: "+tools+"\n---\n"), 0o644))
	}
	secret := filepath.Join(base, "secret")
	require.NoError(t, os.WriteFile(secret, []byte(hush+"\n"), 0o600))
	text := fmt.Sprintf("stores:\n  services:\n    api: {url: %q, agents: [one], addresses: [127.0.0.1], credential: {file: %q}, prefix: 'Bearer '}\n", server.URL+"/v1", secret)
	require.NoError(t, os.WriteFile(filepath.Join(base, "scopefs.yaml"), []byte(text), 0o644))
	run := func(words ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), program, append([]string{"--base", base}, words...)...).CombinedOutput()
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
