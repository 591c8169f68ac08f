package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestRunForPresets: the presets of a program hold for its run alone. No file changes, a session beside it does not have them, and a
// definition that denies, or says network: none, decides.
func TestRunForPresets(t *testing.T) {
	t.Parallel()
	need.Program(t, "curl")
	p := newProjects(t, "project")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "reached") }))
	t.Cleanup(server.Close)
	p.env = append(p.env, "XDG_CONFIG_HOME=")
	settings := filepath.Join(p.Base, ".config/scopefs")
	for name, text := range map[string]string{
		"presets.d/mine.yaml":  "description: x\nallow: [{host: api.test, address: '" + strings.TrimPrefix(server.URL, "http://") + "', intercept: true}]\n",
		"programs.d/asks.yaml": "command: curl\nnetwork: [mine]\nargs: [-sS, http://api.test/]\n",
	} {
		name = filepath.Join(settings, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
	}
	require.NoError(t, exec.Command("chown", "-R", fmt.Sprint(accountUID), filepath.Join(p.Base, ".config")).Run())
	m := &mounted{t, filepath.Join(p.Base, "project"), func(args ...string) *exec.Cmd { return p.command("project", args...) }}
	asks := func() harness.Outcome { return m.do("run", "--dir", ".", "--for", "asks") }

	require.Zero(t, p.run("project", "true").Code)
	text := harness.ReadAll(t, m.definition())
	s := p.begin("project")
	o := asks()
	assert.Equal(t, "reached", o.Stdout, o.Stderr)
	assert.Contains(t, o.Stderr, "--for asks: this run may connect to the hosts of mine (scopefs presets show mine). "+
		"To have that last: scopefs allow mine\n")
	assert.Contains(t, p.run("project", "curl", "-sS", "http://api.test/").Stdout, "GET http://api.test/ is not allowed", "another run, beside the first")
	assert.Zero(t, p.finish("project", s))
	assert.Equal(t, text, harness.ReadAll(t, m.definition()))

	edit := func(keys string) {
		require.NoError(t, os.WriteFile(m.definition(), []byte(strings.Replace(text, "name:", keys+"\nname:", 1)), 0o600))
	}
	edit("network: {allow: [own.test]}")
	assert.Equal(t, "reached", asks().Stdout, "of an edited definition")
	edit("network: {deny: [api.test]}")
	assert.Contains(t, asks().Stdout, "network.deny: api.test")
	edit("network: none")
	o = asks()
	assert.Equal(t, 125, o.Code)
	assert.Contains(t, o.Stderr, "has network: none, so that it cannot reach its model")
	edit("network: {presets: [mine]}")
	o = asks()
	assert.Equal(t, "reached", o.Stdout)
	assert.NotContains(t, o.Stderr, "this run")
}
