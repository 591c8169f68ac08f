package cli

import (
	"context"
	"encoding/json"
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
echo "profile: $(ls "$D/root/etc/apparmor.d/scopefs" 2>/dev/null || echo none)"
# A parser of AppArmor 4 stands in: this host's may be older.
mkdir -p "$D/root/etc/apparmor.d" "$D/root/usr/local/sbin"
printf '#!/bin/sh\nfor file; do :; done\ngrep -q "^abi <abi/4" "$file"\n' >"$D/root/usr/local/sbin/apparmor_parser"
chmod 755 "$D/root/usr/local/sbin/apparmor_parser"
inside dpkg --force-confmiss -i /scopefs.deb >/dev/null
cmp "$D/root/usr/share/scopefs/apparmor" "$D/root/etc/apparmor.d/scopefs" && echo "profile installed"
mkdir -p "$D/root/var/lib/scopefs/agents/a"; echo text >"$D/root/var/lib/scopefs/agents/a/file"
inside dpkg -r scopefs
inside dpkg -P scopefs
echo "kept: $(cat "$D/root/var/lib/scopefs/agents/a/file")"
find "$D/changes" -name '*scopefs*' ! -type c ! -name scopefs.deb | sed "s,$D/changes,left: ,"
`

// TestDeb: two builds of a package, in two directories and with two umasks, are equal. The
// package installs, works and leaves the agents' files when it is removed.
func TestDeb(t *testing.T) {
	need.All(t, "it builds packages, twice")
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
	assert.Contains(t, said, "profile installed")
	if _, err := os.Stat("/etc/apparmor.d/abi/4.0"); err != nil {
		assert.Contains(t, said, "profile: none", "a parser before 4 would fail at each boot")
	}
	var left []string
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "left: ") && !strings.Contains(line, "/var/lib/scopefs") {
			left = append(left, line)
		}
		assert.NotContains(t, strings.ToLower(line), "unknown key")
	}
	assert.Empty(t, left)
	t.Run("published", func(t *testing.T) { published(t, filepath.Dir(packages[0])) })
}

// apt has apt-get of a repository alone, with a root of its own: $1 is the repository.
const apt = `
set -euo pipefail
mkdir -p "$D/lists/partial" "$D/cache/archives/partial"
echo "deb [signed-by=$1/scopefs.asc] file://$1 stable main" >"$D/sources.list"
get() { apt-get -qq -o Dir::State="$D" -o Dir::State::status=/dev/null -o Dir::Cache="$D/cache" -o Dir::Etc::sourcelist="$D/sources.list" -o Dir::Etc::sourceparts=- -o APT::Sandbox::User=root "$@"; }
get update
cd "$D"
get download scopefs
ls scopefs_*.deb
`

// published: whoever has the public keys can check a release that packaging/publish has signed, and finds what was changed.
func published(t *testing.T, out string) {
	sbom := need.Program(t, "cyclonedx-gomod")
	for _, name := range []string{"minisign", "reprepro", "gpg", "apt-get"} {
		need.Program(t, name)
	}
	sbom, err := filepath.Abs(sbom)
	require.NoError(t, err)
	home := t.TempDir()
	run := func(dir, name string, words ...string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, name, words...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GNUPGHOME="+home, "VERSION=v1.2.3", "RELEASE_KEY="+home+"/key", "APT_KEY=release@scopefs.invalid", "D="+t.TempDir())
		said, err := cmd.CombinedOutput()
		return string(said), err
	}
	must := func(dir, name string, words ...string) string {
		t.Helper()
		said, err := run(dir, name, words...)
		require.NoError(t, err, said)
		return said
	}
	defer func() { _, _ = run("", "gpgconf", "--kill", "all") }()
	must("", "gpg", "--batch", "--passphrase", "", "--quick-gen-key", "release@scopefs.invalid", "ed25519", "sign", "never")
	must("", "minisign", "-G", "-W", "-p", home+"/key.pub", "-s", home+"/key")
	must("", "../../packaging/publish", sbom, out)

	verify := []string{"-V", "-p", home + "/key.pub", "-m", "SHA256SUMS"}
	assert.Contains(t, must(out, "minisign", verify...), "Trusted comment: scopefs v1.2.3, commit ")
	must(out, "sha256sum", "--quiet", "-c", "SHA256SUMS")
	provenance, err := os.ReadFile(filepath.Join(out, "provenance.json"))
	require.NoError(t, err)
	var statement struct {
		Type    string `json:"_type"`
		Subject []struct {
			Name   string
			Digest map[string]string
		}
		PredicateType string
		Predicate     struct {
			BuildDefinition struct{ ExternalParameters map[string]string }
		}
	}
	require.NoError(t, json.Unmarshal(provenance, &statement), string(provenance))
	assert.Equal(t, "https://in-toto.io/Statement/v1 https://slsa.dev/provenance/v1", statement.Type+" "+statement.PredicateType)
	assert.Equal(t, "make release VERSION=v1.2.3 ARCHES='amd64'", statement.Predicate.BuildDefinition.ExternalParameters["command"])
	made := map[string]bool{}
	for _, s := range statement.Subject {
		made[s.Name] = true
		assert.Equal(t, s.Digest["sha256"]+"  "+s.Name+"\n", must(out, "sha256sum", s.Name))
	}
	for _, name := range []string{"scopefs-linux-amd64", "scopefs-linux-amd64-stores", "scopefs-linux-amd64.cdx.json", "scopefs_1.2.3_amd64.deb"} {
		assert.True(t, made[name], "%s of %v", name, made)
	}
	assert.Contains(t, must("", "cat", out+"/SHA256SUMS"), "  provenance.json\n", "it is signed with the list")
	bill, err := os.ReadFile(filepath.Join(out, "scopefs-linux-amd64.cdx.json"))
	require.NoError(t, err)
	for _, module := range []string{`"bomFormat": "CycloneDX"`, "pkg:golang/github.com/hanwen/go-fuse/v2@", "pkg:golang/golang.org/x/sys@"} {
		assert.Contains(t, string(bill), module)
	}
	assert.Contains(t, must("", "bash", "-c", apt, "bash", out+"/apt"), "scopefs_1.2.3_amd64.deb")

	sums := filepath.Join(out, "SHA256SUMS")
	text, err := os.ReadFile(sums)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(sums, append(text, '\n'), 0o644))
	_, err = run(out, "minisign", verify...)
	assert.Error(t, err, "a changed list")
	debs, err := filepath.Glob(out + "/apt/pool/main/s/scopefs/*.deb")
	require.NoError(t, err)
	require.NotEmpty(t, debs)
	require.NoError(t, os.WriteFile(debs[0], []byte("other"), 0o644))
	_, err = run("", "bash", "-c", apt, "bash", out+"/apt")
	assert.Error(t, err, "a changed package")
	release, err := os.ReadFile(out + "/apt/dists/stable/InRelease")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(out+"/apt/dists/stable/InRelease", []byte(strings.Replace(string(release), "Label: scopefs", "Label: others", 1)), 0o644))
	_, err = run("", "bash", "-c", apt, "bash", out+"/apt")
	assert.Error(t, err, "a changed repository")
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
