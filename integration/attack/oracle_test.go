package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// TestAttackLinkOracle: a link's text that leads through what the policy hides,
// or through a directory that the agent may not search, is answered alike
// whatever stands there.
func TestAttackLinkOracle(t *testing.T) {
	for _, identity := range []string{"user: 4321", "identity: caller\nview: {allow_other: true}"} {
		for name, secret := range map[string]string{"hidden": ".env/x", "hidden name": "conf/.env", "unsearchable": "closed/x"} {
			t.Run(identity[:4]+" "+name, func(t *testing.T) { linkOracle(t, identity, secret) })
		}
	}
}

func linkOracle(t *testing.T, identity, secret string) {
	front := identity + "\nview: {paths: {\"**/.env\": hide}}"
	if strings.Contains(identity, "view:") {
		front = strings.Replace(identity, "{allow_other", "{paths: {\"**/.env\": hide}, allow_other", 1)
	}
	h := harness.LayOut(t, map[string]string{"a": front})
	dir := h.Scope("a")
	harness.Plant(t, dir, "f", "up/f", "deep/er/f", "conf/ordinary")
	texts := []string{"../" + secret, "../" + secret + "/y", "../" + secret + "/../z", "../" + secret + "/../../f",
		"../" + secret + "/../../../f", "../" + secret + "/../../../../out", "/workspace/" + secret}
	for i, text := range texts {
		harness.Plant(t, dir, fmt.Sprintf("up/planted%d => %s", i, text))
	}
	harness.Plant(t, dir, "up/through => planted0")
	require.NoError(t, os.Chown(dir, 4321, 4321))
	require.NoError(t, os.Chown(filepath.Join(dir, "up"), 4321, 4321))
	states := map[string][]string{
		"missing": nil, "file": {secret}, "directory": {secret + "/y"}, "empty directory": {secret + "/"},
		"link inside": {secret + " => ../f"}, "link to a directory": {secret + " => ../deep/er"}, "link that loops": {secret + " => " + filepath.Base(secret)},
		"link that dangles": {secret + " => nothing"}, "link out": {secret + " => ../../../out"}, "absolute link out": {secret + " => /etc/shadow"},
		"directory with a link out": {secret + "/y => /etc/shadow"}, "link that is long": {secret + " => " + strings.Repeat("n/../", 700)},
	}
	top := filepath.Join(dir, strings.Split(secret, "/")[0])
	if top != filepath.Join(dir, "conf") {
		require.NoError(t, os.Mkdir(top, 0o700))
	}
	h.Start()
	answers := func(state string) (said []string) {
		var ops []string
		for i, text := range texts {
			ops = append(ops, fmt.Sprintf("symlink %s l%d", text, i), fmt.Sprintf("readlink l%d", i), fmt.Sprintf("read l%d", i),
				fmt.Sprintf("write l%d", i), fmt.Sprintf("link l%d h%d", i, i), fmt.Sprintf("unlink l%d", i), fmt.Sprintf("unlink h%d", i),
				fmt.Sprintf("readlink planted%d", i), fmt.Sprintf("stat planted%d", i), fmt.Sprintf("read planted%d", i))
		}
		ops = append(ops, "readlink through", "read through", "symlink through s", "unlink s")
		before := len(h.Events("a"))
		for i, got := range h.OpsAsUser(4321, h.View("a", "up"), ops...) {
			said = append(said, ops[i]+": "+got)
		}
		for _, e := range h.Events("a")[before:] {
			if e.Verdict == audit.Violation {
				said = append(said, fmt.Sprintf("recorded: %s %s -> %s", e.Op, e.Path, e.Target))
			}
		}
		return said
	}
	want := answers("missing")
	assert.Contains(t, want, "symlink "+texts[0]+" l0: ok")
	assert.Contains(t, want, "readlink planted0: ok")
	assert.Contains(t, want, "symlink "+texts[5]+" l5: EACCES", "it leads out whatever stands there")
	for state, entries := range states {
		harness.Plant(t, dir, entries...)
		assert.Equal(t, want, answers(state), state)
		require.NoError(t, os.RemoveAll(filepath.Join(dir, secret)))
	}
	// The directory itself may be a link.
	if filepath.Base(secret) == "x" && strings.HasPrefix(secret, ".env") {
		for _, to := range []string{"deep/er", "../../out", "/etc"} {
			require.NoError(t, os.RemoveAll(top))
			require.NoError(t, os.Symlink(to, top))
			assert.Equal(t, want, answers(to), to)
		}
	}
}
