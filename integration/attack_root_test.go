package integration

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
)

// ownerless is an access ACL u::---,g::rwx,o::rwx; acl(5).
var ownerless = []byte("\x02\x00\x00\x00\x01\x00\x00\x00\xff\xff\xff\xff\x04\x00\x07\x00\xff\xff\xff\xff\x20\x00\x07\x00\xff\xff\xff\xff")

func init() {
	attackOps["chmod-0"] = func(a []string) error { return unix.Chmod(a[0], 0) }
	attackOps["chmod-300"] = func(a []string) error { return unix.Chmod(a[0], 0o300) }
	attackOps["chmod-500"] = func(a []string) error { return unix.Chmod(a[0], 0o500) }
	attackOps["chmod-755"] = func(a []string) error { return unix.Chmod(a[0], 0o755) }
	attackOps["fchmod-0"] = func(a []string) error {
		return opened(a[0], unix.O_RDONLY, func(fd int) error { return unix.Fchmod(fd, 0) })
	}
	attackOps["setacl-0"] = func(a []string) error { return unix.Lsetxattr(a[0], "system.posix_acl_access", ownerless, 0) }
}

// TestAttackRootMode: an agent cannot lock itself out of its view.
func TestAttackRootMode(t *testing.T) {
	for name, front := range map[string]string{
		"private": "user: 4321\nview: {xattrs: true}",
		"shared":  "user: 4321\nview: {allow_other: true, xattrs: true}",
		"caller":  "identity: caller\nview: {allow_other: true, xattrs: true}",
	} {
		t.Run(name, func(t *testing.T) {
			h := layOut(t, map[string]string{"a": front})
			plant(t, h.scope("a"), "f", "d/")
			require.NoError(t, exec.Command("chown", "-R", "4321:4321", h.scope("a")).Run())
			h.start()
			locks := []string{"stat .", "chmod-0 .", "chmod-300 .", "fchmod-0 .", "setacl-0 ."}
			assert.Equal(t, []string{"ok", "EPERM", "EPERM", "EPERM", "EPERM"}, h.asUser(4321, h.view("a"), locks...))
			assert.True(t, h.recorded("a", audit.Event{Op: "setattr", Path: ".", Target: "mode of the root", Verdict: audit.Deny}))
			assert.True(t, h.recorded("a", audit.Event{Op: "setxattr", Path: ".", Target: "mode of the root", Verdict: audit.Deny}))
			others := []string{"chmod-500 .", "stat f", "chmod-755 .", "create g", "chmod-0 d", "chmod-755 d", "setacl-0 d", "setacl ."}
			assert.Equal(t, []string{"ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok"}, h.asUser(4321, h.view("a"), others...))
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
			h := layOut(t, map[string]string{"a": front})
			plant(t, h.scope("a"), "f", "d/e/f")
			require.NoError(t, exec.Command("chown", "-R", "4321:4321", h.scope("a")).Run())
			h.start()
			state := func() string { return h.ps()[0].State }
			require.Equal(t, "mounted", state())
			for _, mode := range []os.FileMode{0, 0o300} {
				require.NoError(t, os.Chmod(h.scope("a"), mode))
				h.must("down", "a")
				h.must("up", "a")
				assert.Equal(t, "mounted", state())
				require.NoError(t, os.Chmod(h.scope("a"), 0o755))
				h.eventually("the agent has its files again", func() bool {
					return h.asUser(4321, h.base, "read "+h.view("a", "d/e/f"))[0] == "ok"
				})
				assert.Equal(t, []string{"ok", "ok", "ok"}, h.asUser(4321, h.view("a"), "mkdir new", "rename new d/new", "rmdir d/new"))
			}
			require.NoError(t, os.Chmod(h.scope("a"), 0))
			h.must("down", "a")
		})
	}
}
