package daemon

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// debian has root/, a fresh Debian with the packages that scopefs depends on to install, and release/ with the package: make
// test-deb.
const debian = "../../bin/debian"

// debScript does what the operator of a fresh host does. The package makes the rest.
const debScript = `exec 2>&1
export DEBIAN_FRONTEND=noninteractive
get() { apt-get -qq -o Dpkg::Use-Pty=0 --no-install-recommends "$@" >/out/apt 2>&1 || cat /out/apt; }
is() { scopefs ps | awk '$1 == "a" { print $2 }'; }
try() {
	for i in $(seq 600); do [ "$(is)" = starting ] || break; sleep 0.1; done
	echo "$1: $(systemctl is-active scopefs), a is $(is)"
	scopefs run a -- sh -c 'echo text >>file; wc -l <file'
	scopefs call --agent a bash command=pwd
	scopefs call --agent a read_file path=file | head -n 1
}
get install -y /out/scopefs.deb
printf -- '---\nname: a\n---\nYou are a.\n' >/var/lib/scopefs/agents.d/a.md
scopefs doctor >/out/doctor
echo "doctor: $?, $(grep -c missing /out/doctor) missing"
grep -E 'missing|scopefs.service' /out/doctor
systemctl enable --quiet --now scopefs
try enabled
systemctl restart scopefs
try restarted
get remove -y scopefs
echo "removed: $(awk '$2 $3 ~ /scopefs/' /proc/mounts | wc -l) mounts, $(ls -l /proc/[0-9]*/exe 2>/dev/null | grep -c scopefs) processes, $(systemctl is-enabled scopefs 2>/dev/null)"
get purge -y scopefs
find / -xdev -path /out -prune -o -name '*scopefs*' -print | sort
wc -l </var/lib/scopefs/agents/a/file
journalctl --no-pager -u scopefs >/out/err
`

// TestDebBoots: on a fresh Debian with systemd the package, a definition and systemctl enable --now give an agent with commands and
// tools, also after a restart. Nothing runs or is mounted when the package is removed; the agents' files and the log stay.
func TestDebBoots(t *testing.T) {
	need.Target(t, "test-deb", "SCOPEFS_TEST_DEB", "1")
	harness.NeedFUSE(t)
	need.Program(t, "systemd-nspawn")
	debs, err := filepath.Glob(debian + "/release/*.deb")
	require.NoError(t, err)
	require.Len(t, debs, 1)
	root, err := filepath.Abs(debian + "/root")
	require.NoError(t, err)
	out, said := bootIn(t, root, "", debScript, map[string]string{"scopefs.deb": debs[0]})
	assert.Equal(t, `doctor: 0, 0 missing
ok        scopefs.service  capabilities           with those of the unit a daemon has what root has
enabled: active, a is mounted
1
/workspace
text
restarted: active, a is mounted
2
/workspace
text
removed: 0 mounts, 0 processes, 
/var/lib/scopefs
/var/lib/scopefs-state
2
`, out, said)
}
