package cli

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// inRoot installs, tries and removes the package $1 in a copy of this host's root: an
// overlay, in a mount namespace of its own, that keeps its changes in memory.
const inRoot = `
set -euo pipefail
mount -t tmpfs none "$D"
mkdir "$D/changes" "$D/work" "$D/root"
mount -t overlay none -o "lowerdir=/,upperdir=$D/changes,workdir=$D/work" "$D/root"
for dir in dev proc; do mount --rbind /$dir "$D/root/$dir"; done
cp "$1" "$D/root/scopefs.deb"
inside() { chroot "$D/root" "$@"; }
inside dpkg -i /scopefs.deb
echo "installed: $(inside scopefs version | head -c 14)"
inside dpkg -s scopefs | grep ^Status
inside bash -n /usr/share/bash-completion/completions/scopefs
for page in "$D"/root/usr/share/man/man1/scopefs*.gz; do gzip -t "$page"; done
gzip -dc "$D/root/usr/share/man/man1/scopefs-daemon.1.gz" | grep -q 'RUN/views/<id>'
if command -v systemd-analyze >/dev/null; then
	inside systemd-analyze verify /usr/lib/systemd/system/scopefs.service
	XDG_RUNTIME_DIR=/tmp inside systemd-analyze --user verify /usr/lib/systemd/user/scopefs.service /usr/lib/systemd/user/scopefs.socket
	inside systemd-tmpfiles --create scopefs.conf
	stat -c '%n %a' "$D/root/var/lib/scopefs/agents.d" | sed "s,$D/root,,"
	inside scopefs ps 2>&1 || true
fi
while IFS='= ' read -r key _; do case $key in [a-z]*) cat "/proc/sys/${key//./\/}" >/dev/null;; esac; done <"$D/root/usr/lib/sysctl.d/60-scopefs.conf"
mkdir -p "$D/root/var/lib/scopefs/agents/a"; echo text >"$D/root/var/lib/scopefs/agents/a/file"
inside dpkg -r scopefs
inside dpkg -P scopefs
echo "kept: $(cat "$D/root/var/lib/scopefs/agents/a/file")"
find "$D/changes" -name '*scopefs*' ! -type c ! -name scopefs.deb | sed "s,$D/changes,left: ,"
`

// TestDeb: two builds of a package, in two directories and with two umasks, are equal. The
// package installs, works and leaves the agents' files when it is removed.
func TestDeb(t *testing.T) {
	need.Once(t)
	need.Root(t, "it installs a package in a copy of the root")
	nfpm := need.Program(t, "nfpm")
	need.Program(t, "dpkg")
	need.Long(t, "it links the program twice")
	nfpm, err := filepath.Abs(nfpm)
	require.NoError(t, err)
	run := func(env []string, name string, words ...string) string {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, name, words...)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	var packages []string
	for umask, name := range map[string]string{"022": "one", "077": "another/deeper"} {
		dir := filepath.Join(t.TempDir(), name)
		run([]string{"VERSION=v1.2.3", "SOURCE_DATE_EPOCH=1700000000"}, "bash", "-ec",
			`umask "$3"; mkdir -p "$1"; git -C ../.. ls-files -co --exclude-standard -z | (cd ../..; while IFS= read -r -d '' f; do [ ! -e "$f" ] || printf '%s\0' "$f"; done | tar -c --null -T -) | tar -x -C "$1"; "$1/packaging/release" "$2" "$1/out" amd64`,
			"bash", dir, nfpm, umask)
		packages = append(packages, filepath.Join(dir, "out", "scopefs_1.2.3_amd64.deb"))
	}
	first, err := os.ReadFile(packages[0])
	require.NoError(t, err)
	second, err := os.ReadFile(packages[1])
	require.NoError(t, err)
	assert.True(t, string(first) == string(second), "the packages differ: %s", run(nil, "bash", "-c", `dpkg-deb -c "$1" >"$1.list"; dpkg-deb -c "$2" | diff "$1.list" - | head -20`, "bash", packages[0], packages[1]))

	said := run([]string{"D=" + t.TempDir()}, "unshare", "-m", "--propagation", "private", "bash", "-c", inRoot, "bash", packages[0])
	assert.Contains(t, said, "installed: scopefs v1.2.3")
	assert.Contains(t, said, "Status: install ok installed")
	if _, err := exec.LookPath("systemd-analyze"); err == nil {
		assert.Contains(t, said, "/var/lib/scopefs/agents.d 711")
		assert.Contains(t, said, "no daemon is running at /run/scopefs/control.sock", "the host's directories are the default")
	}
	assert.Contains(t, said, "kept: text")
	var left []string
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "left: ") && !strings.Contains(line, "/var/lib/scopefs") {
			left = append(left, line)
		}
		assert.NotContains(t, strings.ToLower(line), "unknown key")
	}
	assert.Empty(t, left)
}

// TestDebVersion: packages of commits without a tag sort by time, after those that older builds made of a hash, and before
// every tag.
func TestDebVersion(t *testing.T) {
	t.Parallel()
	need.Program(t, "dpkg")
	last := "0~f4b67f1"
	for _, next := range [][]string{{"f4b67f1", "1795642000"}, {"084ef77-dirty", "1795642001"}, {"v0.1.0", "1"}, {"v0.1.0-5-g084ef77", "1"}, {"v0.1.1", "1"}} {
		out, err := exec.CommandContext(t.Context(), "../../packaging/debversion", next...).Output()
		require.NoError(t, err)
		version := strings.TrimSpace(string(out))
		assert.NoError(t, exec.CommandContext(t.Context(), "dpkg", "--compare-versions", last, "lt", version).Run(), "%s lt %s", last, version)
		last = version
	}
}
