package tools

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestNetworkKey: a key that is not in the environment of the daemon comes from the client of a run, for its session alone. The
// sandbox and the log have it as little as any other.
func TestNetworkKey(t *testing.T) {
	t.Parallel()
	need.Program(t, "curl")
	const variable, secret = "SCOPEFS_TEST_LATE_KEY", "sesame-late-4711-4712"
	seen := make(chan string, 100)
	at, ca := secureServer(t, func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header.Get("X-Api-Key") }, "api.test")
	h := harness.LayOut(t, nil)
	h.Put("presets.d/late.yaml", fmt.Sprintf("description: x\nallow: [{host: api.test, address: '%s', ca: %q, credential: {header: x-api-key, from: {env: %s}}}]\n", at, ca, variable))
	h.Put("programs.d/curl.yaml", "network: [late]\n")
	h.Define("a", "network: {presets: [late]}")
	h.Start()
	run := func(env []string, words ...string) harness.Outcome {
		cmd := exec.Command(harness.Program, append([]string{"--base", h.Base, "run", "a"}, words...)...)
		cmd.Env = append(os.Environ(), env...)
		return harness.Finish(t, cmd)
	}
	fetch := []string{"--", "sh", "-c", "curl -sS https://api.test/; env | grep -c '[s]esame'; echo $" + variable}
	key := variable + "=" + secret
	o := run([]string{key}, fetch...)
	assert.Contains(t, o.Stdout, "0\nscopefs-secret-", o.Stderr)
	assert.Equal(t, secret, <-seen)
	o = run([]string{key}, "--for", "curl", "--", "-sS", "https://api.test/")
	assert.Zero(t, o.Code, o.Stderr)
	assert.Equal(t, secret, <-seen)

	// The next session has none, and says where it is missing.
	o = run(nil, fetch...)
	assert.Contains(t, o.Stderr, "env: "+variable+" is not set: set it in the environment of scopefs run, or of the daemon if one runs")
	o = run(nil, "--for", "curl", "--", "-sS", "https://api.test/")
	assert.Contains(t, o.Stderr, "curl: the key of api.test cannot be read: env: "+variable+" is not set")
	assert.Empty(t, seen)
	assert.NotContains(t, h.Must("audit", "--json"), secret)
	h.Stop()
	assert.NotContains(t, h.Log.String(), secret)
}
