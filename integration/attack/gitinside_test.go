package attack

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// TestGitInside: git takes a path inside the view as a path and as file://, also for a partial clone and a fetch that needs its
// promisor. A URL that leads outside, or that names a program, is no remote's; the log names a path of the host as such.
func TestGitInside(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`})
	run := func(script string) (string, int) {
		out, errs, code := h.Try("run", "-q", "a", "--", "sh", "-ec", script)
		return out + errs, code
	}
	text, code := run(`git init -q -b main src; cd src; echo 1 >f; git add f
git -c user.name=x -c user.email=x@example.org commit -qm x; cd ..
git clone -q file:///workspace/src one
git clone -q --filter=blob:none --no-checkout file:///workspace/src part
git -C part checkout -q main; git -C part fetch -q
git -C one remote add again file:///workspace/src; git -C one fetch -q again
cat one/f part/f; git -C part config remote.origin.promisor`)
	require.Zero(t, code, text)
	assert.Contains(t, text, "1\n1\ntrue\n")
	for _, url := range []string{"file:///etc/outside", "file:///workspace/../etc/outside", "/etc/outside", "ext::sh -c evil", "ssh://-oProxyCommand=evil/x"} {
		text, code := run("git -C one config remote.evil.url '" + url + "'")
		assert.NotZero(t, code, "%s: %s", url, text)
	}
	assert.True(t, h.Recorded("a", audit.Event{Op: "rename", Path: "one/.git/config", Verdict: audit.Deny,
		Rule: `protect git-config: sets remote.evil.url to "/etc/outside": the value is a path of the host`}))
	text, code = run("git -C one config --get-regexp 'remote.evil.*' || true")
	assert.Zero(t, code)
	assert.NotContains(t, text, "evil")
}
