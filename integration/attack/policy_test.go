package attack

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

const attackedPolicy = `
view:
  xattrs: true
  paths:
    "secret/**": hide
    "**/.env": hide
    "deep/b/key": hide
    "shut/**": seal
    "**/.seal": seal
    "ref/**": read
    "deep/a/ref": read
    "keys/*.pem": read`

var attackedTree = []string{
	"secret/s", "a/.env", "deep/b/key", "ref/r", "ref/sub/r", "ref/empty/", "deep/a/ref/r", "keys/k.pem",
	"shut/s", "a/.seal", "free/to-seal => ../a/.seal", "free/f", "free/g", "free/d/", "free/e/f", "free/to-s => ../secret/s", "free/to-r => ../ref/r",
}

// policyAttacks are tricks against the policy above. Each must fail, the first
// group as if nothing were there; and each works where there is no policy.
var policyAttacks = map[string][]string{
	"ENOENT": {
		"stat secret", "stat secret/s", "read secret/s", "read a/.env", "read deep/b/key", "list . secret", "list a .env",
		"list secret s", "read a/../secret/s", "read ./secret//s", "stat secret/", "stat secret/.", "read ref/../a/.env",
		"read free/to-s", "write free/to-s", "trunc free/to-s", "chmod free/to-s", "reopen free/to-s",
		"rename secret free/x", "rename a/.env free/x", "xchg secret free", "xchg free/f secret/s", "xchg a/.env free/f",
		"link secret/s free/h", "link a/.env free/h", "fdlink secret/s free/h", "unlink a/.env", "unlink secret/s",
		"write secret/s", "trunc a/.env", "o-trunc secret/s", "chmod secret", "utimes a/.env", "setxattr a/.env",
		"retrunc a/.env", "repath secret/s", "copyrange secret/s free/f", "copyrange free/f secret/s",
		"create secret/n", "mkdir secret/n", "symlink x secret/n", "rename free/f secret/n", "link free/f secret/n",
		"tmplink secret secret/n", "list . shut", "list a .seal",
	},
	"EACCES": {
		// What is sealed gives attributes alone.
		"read shut/s", "read a/.seal", "list shut s", "read free/to-seal", "read a/../shut/s", "reopen shut/s", "repath a/.seal",
		"rename shut free/x", "rename shut/s free/x", "rename a/.seal free/x", "xchg a/.seal free/f", "xchg free/f shut/s",
		"link shut/s free/h", "link a/.seal free/h", "fdlink a/.seal free/h", "copyrange shut/s free/f", "copyrange free/f a/.seal",
		"write shut/s", "append a/.seal", "trunc a/.seal", "o-trunc shut/s", "retrunc a/.seal", "mmap shut/s", "chmod a/.seal",
		"utimes shut/s", "setxattr a/.seal", "unlink a/.seal", "unlink shut/s", "create shut/n", "create free/.seal",
		"link free/f free/.seal", "rename free/f a/.seal",
		// Protected names cannot come into being.
		"create free/.env", "mkdir free/.env", "fifo free/.env", "node free/.env", "symlink f free/.env",
		"link free/f free/.env", "rename free/f free/.env", "rename free/d free/.env", "tmplink free free/.env",
		"create ref/n", "mkdir ref/n", "fifo ref/n", "node ref/n", "symlink r ref/n", "link free/f ref/n",
		"rename free/f ref/n", "rename free/d ref/n", "tmplink ref ref/n", "tmplink free ref/n", "create keys/n.pem",
		"fdlink free/f ref/n", "mkdir ref/sub/n/", "create ref/./n", "create free/../ref/n", "create ref//n",
		// Nor go away, themselves or with what stands above them.
		"rename ref/r free/x", "rename ref free/x", "rename ref/sub free/x", "rename deep free/x", "rename deep/a free/x",
		"rename deep/b free/x", "rename deep deep2", "rename keys keys2", "xchg ref free", "xchg free/f ref/r",
		"xchg free/e ref/sub", "xchg deep/a free", "xchg deep free/f", "xchg free/f deep/b", "xchg free/f keys",
		"rename free/f ref/r", "rename free/d ref/empty", "rename ref/empty free/d", "unlink ref/r", "rmdir ref/empty",
		"link ref/r free/h", "fdlink ref/r free/h", "link ref/r ref/h", "link free/f ref/sub/h",
		// Nor change.
		"write ref/r", "append ref/r", "trunc ref/r", "o-trunc ref/r", "chmod ref/r", "chmod ref", "utimes ref/r",
		"setxattr ref/r", "setacl ref/r", "fchmod ref/r", "futimes ref/r", "fallocate ref/r", "mmap ref/r", "reopen ref/r",
		"repath ref/r", "retrunc ref/r", "copyrange free/f ref/r", "write keys/k.pem", "write deep/a/ref/r",
		"write free/to-r", "trunc free/to-r", "o-trunc free/to-r", "chmod free/to-r", "reopen free/to-r",
		"write ref/../ref/sub/r", "write free/../ref//r",
	},
}

// policyAllowed must go on working.
var policyAllowed = []string{
	"stat shut", "stat shut/s", "stat a/.seal", "stat free/to-seal", "read ref/r", "list ref r", "read free/to-r", "read keys/k.pem", "copyrange ref/r free/f", "write free/f", "create free/n",
	"rename free/n free/m", "create keys/n.txt", "link free/f free/h", "unlink free/h", "chmod free/f",
	"rename a a2", "rename a2 a", "reopen free/f", "mmap free/f",
}

// TestAttackPolicy tries every trick twice: as the host's root through the
// mount, and as the agent in its sandbox.
func TestAttackPolicy(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"victim": attackedPolicy})
	harness.Plant(t, h.Scope("victim"), attackedTree...)
	h.Start()
	protected := func() map[string]string {
		all := harness.Picture(t, h.Scope("victim"))
		for rel := range all {
			if rel == "." || strings.HasPrefix(rel, "free") || rel == "a" || rel == "test-program" || strings.HasPrefix(rel, "keys/n") || rel == "keys" {
				delete(all, rel)
			}
		}
		return all
	}
	before := protected()
	var ops, want []string
	for errno, list := range policyAttacks {
		for _, op := range list {
			ops, want = append(ops, op), append(want, errno+" "+op)
		}
	}
	named := func(got []string) []string {
		for i := range got {
			got[i] += " " + ops[i]
		}
		return got
	}
	assert.Equal(t, want, named(harness.HostOps(t, h.View("victim"), ops...)), "on the host")
	assert.Equal(t, before, protected())
	got := named(harness.DoOps(t, h.InSandbox("victim", "ops"), ops))
	assert.Equal(t, want, got, "in the sandbox")
	assert.Equal(t, before, protected())

	allowed := slices.Repeat([]string{"ok"}, len(policyAllowed))
	assert.Equal(t, allowed, harness.HostOps(t, h.View("victim"), policyAllowed...))
	assert.True(t, h.Recorded("victim", audit.Event{Op: "rename-from", Path: "deep", Verdict: audit.Deny}))
	assert.True(t, h.Recorded("victim", audit.Event{Op: "lookup", Path: "secret", Verdict: audit.Deny, Rule: "secret/**: hide"}))
	assert.True(t, h.Recorded("victim", audit.Event{Op: "open-write", Path: "ref/r", Verdict: audit.Deny}))
}

// TestAttackPolicyControl does the same without a view: what fails there would
// prove nothing.
func TestAttackPolicyControl(t *testing.T) {
	harness.NeedFUSE(t)
	for _, list := range policyAttacks {
		for _, op := range list {
			dir := t.TempDir()
			harness.Plant(t, dir, attackedTree...)
			assert.Equal(t, []string{"ok"}, harness.HostOps(t, dir, op), op)
		}
	}
}

// TestAttackPolicyCase: case counts, so another case is another name, and the
// names that a hidden directory could be guessed by tell nothing.
func TestAttackPolicyCase(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"victim": attackedPolicy})
	harness.Plant(t, h.Scope("victim"), attackedTree...)
	h.Start()
	ops := []string{"read SECRET/s", "read a/.ENV", "stat secret/nothing", "stat nothing", "read Secret/S", "stat secret/s/x"}
	assert.Equal(t, slices.Repeat([]string{"ENOENT"}, len(ops)), harness.HostOps(t, h.View("victim"), ops...))
}

// TestAttackReadOnly: a view with access: read changes nothing at all.
func TestAttackReadOnly(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"reader": "view: {access: read, xattrs: true}"})
	harness.Plant(t, h.Scope("reader"), attackedTree...)
	h.Start()
	before := harness.Picture(t, h.Scope("reader"))
	ops := []string{"create n", "mkdir n", "fifo n", "symlink f n", "link ref/r n", "rename ref n", "xchg ref free", "unlink ref/r",
		"rmdir ref/empty", "write ref/r", "trunc ref/r", "o-trunc ref/r", "chmod .", "utimes .", "setxattr .", "setacl ref", "tmplink . n",
		"reopen ref/r", "mmap ref/r", "fallocate ref/r", "chown ref/r"}
	assert.Equal(t, slices.Repeat([]string{"EACCES"}, len(ops)), harness.HostOps(t, h.View("reader"), ops...))
	assert.Equal(t, before, harness.Picture(t, h.Scope("reader")))
	assert.Equal(t, []string{"ok", "ok"}, harness.HostOps(t, h.View("reader"), "read ref/r", "list . ref"))
}

// TestAttackHardlinks: what another scope shares by a hard link, and a hidden file's second name, obey the rule for
// files with several names.
func TestAttackHardlinks(t *testing.T) {
	h := harness.LayOut(t, map[string]string{
		"r": "view: {hardlinks: read, xattrs: true, paths: {secret: hide}}", "d": "view: {hardlinks: deny, xattrs: true, paths: {secret: hide}}",
	})
	for _, id := range []string{"r", "d"} {
		harness.Plant(t, h.Base, "FOREIGN/"+id)
		harness.Plant(t, h.Scope(id), "own", "secret")
		require.NoError(t, os.Link(filepath.Join(h.Base, "FOREIGN", id), h.Scope(id, "shared"))) // two names, the fewest
		require.NoError(t, os.Link(h.Scope(id, "secret"), h.Scope(id, "second")))
	}
	startAll(h)
	before := harness.Picture(t, filepath.Join(h.Base, "FOREIGN"))
	changes := []string{"write shared", "trunc shared", "o-trunc shared", "chmod shared", "utimes shared", "setxattr shared", "link shared n", "chown shared", "reopen shared"}
	for id, read := range map[string]string{"r": "ok", "d": "EACCES"} {
		assert.Equal(t, slices.Repeat([]string{"EACCES"}, len(changes)), harness.HostOps(t, h.View(id), changes...), id)
		assert.Equal(t, []string{read, "ok", "ok", "ENOENT", read, "EACCES"},
			harness.HostOps(t, h.View(id), "read shared", "stat shared", "write own", "read secret", "read second", "write second"), id)
	}
	assert.Equal(t, before, harness.Picture(t, filepath.Join(h.Base, "FOREIGN")))
}
