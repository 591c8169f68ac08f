package doctor

import (
	"cmp"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusedev/passthrough"
	"github.com/scopefs/scopefs/internal/mount"
)

// TestKernels: what the kernels of WSL2 and of a guest of Lima lack is degraded or missing, with the remedy. docs/operating.md
// says what of it to expect.
func TestKernels(t *testing.T) {
	older := fmt.Errorf("register: %w", passthrough.ErrNone)
	off := fmt.Errorf("landlock: %w: enable it at boot (lsm=landlock,...)", unix.EOPNOTSUPP)
	for name, test := range map[string]struct {
		line   Line
		status Status
		says   string
	}{
		"5.15: passthrough":              {passthroughLine(true, older), Degraded, "use Linux 6.9 or newer"},
		"6.6: passthrough":               {passthroughLine(true, older), Degraded, "use Linux 6.9 or newer"},
		"6.8, a user: passthrough":       {passthroughLine(false, unix.EPERM), Degraded, "only a daemon of root has passthrough"},
		"6.8, an older one: passthrough": {passthroughLine(false, older), Degraded, "use Linux 6.9 or newer"},
		"6.11: passthrough":              {passthroughLine(true, nil), OK, "the kernel reads and writes files itself"},
		"5.15: Landlock":                 {landlock(1, false, nil), Degraded, "use Linux 5.19 or newer"},
		"6.6: Landlock":                  {landlock(3, true, nil), OK, "ABI 3"},
		"Landlock is off":                {landlock(0, false, off), Missing, "enable it at boot"},
		"5.15: fanotify":                 {fanotify(nil, unix.EINVAL), Degraded, "visible after a second"},
		"busy: fanotify":                 {fanotify(nil, unix.EMFILE), Degraded, "too many open files"},
		"no systemd in WSL2: groups":     {groups("", &mount.HostError{What: "no control group", Remedy: "Delegate=yes"}), Degraded, "Delegate=yes"},
		"Ubuntu 24.04: namespaces":       {namespacesLine(unix.EPERM, "kernel.apparmor_restrict_unprivileged_userns=0"), Missing, "kernel.apparmor_restrict_unprivileged_userns=0"},
		"Ubuntu 24.04: system calls":     {missing(&mount.HostError{What: "AppArmor refuses mount", Remedy: "sysctl -w"}), Missing, "sysctl -w"},
	} {
		assert.Equal(t, test.status, cmp.Or(test.line.Status, OK), "%s: %+v", name, test.line)
		assert.Contains(t, test.line.Detail+" "+test.line.Remedy, test.says, name)
	}
}
