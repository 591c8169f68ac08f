package attack

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// ownerless is an access ACL u::---,g::rwx,o::rwx; acl(5).
var ownerless = []byte("\x02\x00\x00\x00\x01\x00\x00\x00\xff\xff\xff\xff\x04\x00\x07\x00\xff\xff\xff\xff\x20\x00\x07\x00\xff\xff\xff\xff")

func init() {
	harness.Ops["chmod-0"] = func(a []string) error { return unix.Chmod(a[0], 0) }
	harness.Ops["chmod-300"] = func(a []string) error { return unix.Chmod(a[0], 0o300) }
	harness.Ops["chmod-500"] = func(a []string) error { return unix.Chmod(a[0], 0o500) }
	harness.Ops["chmod-755"] = func(a []string) error { return unix.Chmod(a[0], 0o755) }
	harness.Ops["fchmod-0"] = func(a []string) error {
		return harness.Opened(a[0], unix.O_RDONLY, func(fd int) error { return unix.Fchmod(fd, 0) })
	}
	harness.Ops["setacl-0"] = func(a []string) error { return unix.Lsetxattr(a[0], "system.posix_acl_access", ownerless, 0) }
}

// TestAttackRootMode: an agent cannot lock itself out of its view.
func TestAttackRootMode(t *testing.T) {
	for name, front := range map[string]string{
		"private": "user: 4321\nview: {xattrs: true}",
		"shared":  "user: 4321\nview: {allow_other: true, xattrs: true}",
		"caller":  "identity: caller\nview: {allow_other: true, xattrs: true}",
	} {
		t.Run(name, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"a": front})
			harness.Plant(t, h.Scope("a"), "f", "d/")
			require.NoError(t, exec.Command("chown", "-R", "4321:4321", h.Scope("a")).Run())
			h.Start()
			locks := []string{"stat .", "chmod-0 .", "chmod-300 .", "fchmod-0 .", "setacl-0 ."}
			assert.Equal(t, []string{"ok", "EPERM", "EPERM", "EPERM", "EPERM"}, h.OpsAsUser(4321, h.View("a"), locks...))
			assert.True(t, h.Recorded("a", audit.Event{Op: "setattr", Path: ".", Target: "mode of the root", Verdict: audit.Deny}))
			assert.True(t, h.Recorded("a", audit.Event{Op: "setxattr", Path: ".", Target: "mode of the root", Verdict: audit.Deny}))
			others := []string{"chmod-500 .", "stat f", "chmod-755 .", "create g", "chmod-0 d", "chmod-755 d", "setacl-0 d", "setacl ."}
			assert.Equal(t, []string{"ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok"}, h.OpsAsUser(4321, h.View("a"), others...))
		})
	}
}

// TestRootModeOfHost: whatever mode the host gives an agent's directory, the
// agent goes down and comes up.
func TestRootModeOfHost(t *testing.T) {
	for name, front := range map[string]string{
		"user":   "user: 4321\nview: {paths: {\"**/.env\": hide}}",
		"caller": "identity: caller\nview: {allow_other: true}",
	} {
		t.Run(name, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"a": front})
			harness.Plant(t, h.Scope("a"), "f", "d/e/f")
			require.NoError(t, exec.Command("chown", "-R", "4321:4321", h.Scope("a")).Run())
			h.Start()
			state := func() string { return h.PS()[0].State }
			require.Equal(t, "mounted", state())
			for _, mode := range []os.FileMode{0, 0o300} {
				require.NoError(t, os.Chmod(h.Scope("a"), mode))
				h.Must("down", "a")
				h.Must("up", "a")
				assert.Equal(t, "mounted", state())
				require.NoError(t, os.Chmod(h.Scope("a"), 0o755))
				h.Eventually("the agent has its files again", func() bool {
					return h.OpsAsUser(4321, h.Base, "read "+h.View("a", "d/e/f"))[0] == "ok"
				})
				assert.Equal(t, []string{"ok", "ok", "ok"}, h.OpsAsUser(4321, h.View("a"), "mkdir new", "rename new d/new", "rmdir d/new"))
			}
			require.NoError(t, os.Chmod(h.Scope("a"), 0))
			h.Must("down", "a")
		})
	}
}
