package mount

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestLack: what a kernel or a distribution lacks has the remedy of that one.
func TestLack(t *testing.T) {
	for name, test := range map[string]struct {
		missing, refused []string
		restricted       bool
		unfiltered       bool
		what, remedy     string
	}{
		"WSL2 and a guest of Lima as root": {},
		"a kernel before 5.13":             {missing: []string{"landlock_create_ruleset"}, what: "the kernel has no landlock_create_ruleset", remedy: "need Linux 5.15 or newer with Landlock"},
		"Ubuntu 24.04":                     {refused: []string{"mount", "unshare"}, restricted: true, what: "AppArmor refuses mount, unshare in a user namespace", remedy: "load scopefs's profile (docs/operating.md#apparmor), or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
		"a container":                      {refused: []string{"mount"}, what: "a seccomp filter refuses mount", remedy: "in the profile of the container"},
		"a container without a filter":     {refused: []string{"mount"}, unfiltered: true, what: "the host or its security module refuses mount", remedy: "a container needs --device /dev/fuse --cap-add SYS_ADMIN"},
		"an old one in a container":        {missing: []string{"openat2"}, refused: []string{"mount"}, restricted: true, what: "the kernel has no openat2", remedy: "5.15"},
	} {
		err := lack(test.missing, test.refused, test.restricted, !test.unfiltered)
		if test.what == "" {
			assert.NoError(t, err, name)
			continue
		}
		host, ok := err.(*HostError)
		if assert.True(t, ok, name) {
			assert.Equal(t, test.what, host.What, name)
			assert.Contains(t, host.Remedy, test.remedy, name)
		}
	}
}
