package attack

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestProtectHooksPath: where the repository's own configuration leads git to hooks and to more settings, an agent changes nothing, and
// moves nothing to there.
func TestProtectHooksPath(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": `protect: ["*"]`, "held": "view: {changes: held}\nprotect: [\"*\"]", "free": ""})
	for _, id := range []string{"a", "held", "free"} {
		cmd := exec.Command("sh", "-ec", `git init -q; git config core.hooksPath tools/git; git config include.path ../conf/git.inc; mkdir -p tools/git conf other/git;
			printf '[core]\n\thooksPath = more/h[o]oks\n' >conf/git.inc; echo >tools/git/pre-commit; echo >other/git/pre-commit`)
		cmd.Dir = h.Scope(id)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	h.Start()
	for _, attack := range []string{
		"echo x >tools/git/pre-commit", "echo x >tools/git/post-merge", "mv tools t", "mv -T other tools", "rm tools/git/pre-commit", "chmod +x tools/git/pre-commit",
		"ln -sf ../../evil tools/git/pre-commit", "echo x >conf/git.inc", "mv conf c", "mkdir -p more/h[o]oks", "mkdir more; mkdir m; mkdir 'm/h[o]oks'; mv -T m more", "ln -s other more",
	} {
		for _, id := range []string{"a", "held"} {
			_, _, code := h.Try("run", id, "--", "sh", "-ec", attack+"; test ! -e more -o -e 'more/h[o]oks' -o -L more")
			assert.NotZero(t, code, "%s: %s", id, attack)
		}
	}
	for _, id := range []string{"a", "held"} {
		h.Must("run", id, "--", "sh", "-ec", "echo x >tools/x; echo x >conf/x; mkdir -p more/hooks; cat tools/git/pre-commit conf/git.inc")
	}
	h.Must("run", "free", "--", "sh", "-ec", "echo x >tools/git/pre-commit; mv tools t")
}
