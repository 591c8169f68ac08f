package tools

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestClientsNode: a Node.js 22 that anything in the sandbox starts does not warn about the proxy, and warns about the rest. A
// sealed .env is an error to what reads it.
func TestClientsNode(t *testing.T) {
	need.Once(t)
	needClients(t)
	clients, err := filepath.Abs("../../bin/clients")
	require.NoError(t, err)
	node, dotenv := clients+"/node/bin/node", clients+"/node_modules/dotenv"
	h := harness.LayOut(t, map[string]string{"a": "network: {allow: [other.test]}\nview: {paths: {\"**/.env\": seal}}"})
	h.Put("scopefs.yaml", fmt.Sprintf("sandbox: {expose: [%s, %s]}\n", node, dotenv))
	h.Put("agents/a/.env", "KEY=secret\n")
	h.Start()
	for script, want := range map[string]string{
		`process.emitWarning("mine")`: "Warning: mine",
		`setTimeout(() => process.emitWarning("mine", {code: "UNDICI-OTHER"}), 10)`: "[UNDICI-OTHER] Warning: mine",
		`throw require("` + dotenv + `").config({quiet: true}).error`:               "EACCES: permission denied, open '/workspace/.env'",
	} {
		_, errs, _ := h.Try("run", "-e", "NODE_OPTIONS=--stack-trace-limit=3", "a", "--", "sh", "-c", `exec "$@"`, "sh", node, "-e", script)
		assert.Contains(t, errs, want)
		assert.NotContains(t, errs, "EnvHttpProxyAgent")
	}
	for flag, code := range map[string]int{"--env-file=.env": 9, "--env-file-if-exists=.env": 0} {
		out, errs, got := h.Try("run", "a", "--", node, flag, "-p", "process.env.KEY")
		assert.Equal(t, code, got, flag)
		assert.Contains(t, errs, ".env", flag)
		assert.NotContains(t, out+errs, "secret", flag)
	}
	if _, err := os.Stat("/usr/lib/python3/dist-packages/dotenv"); err != nil {
		need.Skip(t, err)
	}
	_, errs, _ := h.Try("run", "a", "--", "/usr/bin/python3", "-c", `import dotenv; dotenv.load_dotenv(dotenv.find_dotenv(usecwd=True))`)
	assert.Contains(t, errs, "PermissionError: [Errno 13] Permission denied: '/workspace/.env'")
}
