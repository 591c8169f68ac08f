package tools

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestStoresNotify: two agents notify by channels that the operator names for each,
// and the credential of a channel is nowhere but at its server.
func TestStoresNotify(t *testing.T) {
	const hush = "t0ken-of-the-operator"
	var mu sync.Mutex
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r.URL.Path+" "+strings.TrimSpace(string(body)))
		if len(got) == 1 {
			http.Error(w, "you sent "+r.URL.Path, http.StatusInternalServerError)
		}
		if strings.HasPrefix(r.URL.Path, "/inside") {
			http.Redirect(w, r, "http://169.254.169.254/"+hush, http.StatusFound)
		}
	}))
	defer server.Close()
	h := harness.LayOut(t, map[string]string{"a": "", "ab": "", "none": "tools: [read_file]"})
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte(server.URL+"/"+hush+"\n"), 0o600))
	h.Put("scopefs.yaml", fmt.Sprintf(`stores:
  notify:
    team: {kind: slack, credential: {file: %q}, addresses: [127.0.0.1], agents: [a]}
    ops: {kind: webhook, url: %q, addresses: [127.0.0.1]}
    down: {kind: webhook, url: %q, addresses: [127.0.0.1], timeout: 2s}
    inside: {kind: webhook, url: %q, addresses: [127.0.0.1]}
    private: {kind: webhook, url: %q}
`, secret, server.URL+"/ops", server.URL+"/down", server.URL+"/inside", server.URL+"/private"))
	h.Start()
	a, ab, none := h.Connect("a"), h.Connect("ab"), h.Connect("none")

	assert.EqualValues(t, 2, a.Call("notify", args{"channel": "team", "content": "<!channel> hi", "title": "t"})["attempts"])
	ab.Call("notify", args{"channel": "ops", "content": "hello"})
	assert.Equal(t, "denied", string(ab.Fails("notify", args{"channel": "team", "content": "x"}).Code))
	assert.Equal(t, "invalid", string(a.Fails("notify", args{"channel": "ops", "content": "x", "title": "a\r\nb"}).Code))
	for _, channel := range []string{"inside", "private"} {
		assert.Equal(t, "unavailable", string(a.Fails("notify", args{"channel": channel, "content": "x"}).Code))
	}
	assertAbsent(none, "none", "notify", args{"channel": "ops", "content": "x"})
	team := `/` + hush + ` {"mrkdwn":false,"text":"[a] t\n&lt;!channel&gt; hi","unfurl_links":false,"unfurl_media":false}`
	assert.Equal(t, []string{team, team, `/ops {"agent":"ab","content":"hello","title":""}`, `/inside {"agent":"a","content":"x","title":""}`}, got)

	last := h.Last("a", "notify")
	assert.Equal(t, "private", last.Target)
	assert.Contains(t, last.Detail, "the address is not allowed")
	delivered := h.Calls("ab", "notify")
	assert.Equal(t, "ok", delivered[1].Outcome)

	stores, errs, code := h.Try("stores")
	assert.Equal(t, 1, code, "private is not reached: "+errs)
	assert.Regexp(t, `notify.team +slack +ok +a +notify`, stores)
	assert.Regexp(t, `notify.ops +webhook +ok +a,ab +notify`, stores)
	for _, text := range []string{h.Must("audit", "--json"), h.Must("agents", "show", "a", "--json"), stores, errs, a.Heard.String(), a.Bash("env; grep -rs " + hush[:12] + "-of /workspace /proc/*/cmdline /tmp || true")} {
		assert.NotContains(t, text, hush)
	}

	// What a server that is down costs is one call of one agent.
	server.Close()
	began := time.Now()
	assert.Equal(t, "unavailable", string(a.Fails("notify", args{"channel": "down", "content": "x"}).Code))
	assert.Less(t, time.Since(began), 30*time.Second)
}
