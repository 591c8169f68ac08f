package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestChanges: changes lists what programs and tools did since the last session began, with
// diffs against the agent's repository. A repository that starts programs in git starts
// none on the host, and nothing outside of the scope is read.
func TestChanges(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {record: writes}", "b": ""})
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	sign := filepath.Join(h.Base, "started-on-the-host")
	require.NoError(t, os.WriteFile(filepath.Join(h.Base, "secret"), []byte("SECRET of the host"), 0o600))
	setUp := `git init -q . && git config user.name a && git config user.email a@b.c &&
		printf 'one\ntwo\n' > kept && printf 'old\n' > gone && echo x > same && echo y > swapped && git add . && git commit -qm first`
	require.Zero(t, m.Run("a", "--", "sh", "-c", setUp).Code)
	require.NoError(t, os.WriteFile(h.Scope("a", "replaced"), []byte("old\n"), 0o666))
	// What git could start, from a second session.
	trap := filepath.Join(h.Base, "trap")
	require.NoError(t, os.WriteFile(trap, []byte("#!/bin/sh\ntouch "+sign+"\n"), 0o755))
	hostile := `git config core.fsmonitor ` + trap + ` && git config diff.external ` + trap + ` && git config core.pager ` + trap + ` &&
		git config diff.x.textconv ` + trap + ` && git config filter.x.clean ` + trap + ` && git config filter.x.smudge ` + trap + ` && git config core.sshCommand ` + trap + ` &&
		printf '* diff=x filter=x\n' > .gitattributes && mkdir -p .git/hooks && cp /bin/true .git/hooks/post-index-change`
	work := `sleep 1.1; printf 'one\n2\n' > kept; rm gone; printf 'fresh\n' > 'new file'; mkdir d; mkfifo d/fifo; echo x > "$(printf 'd/\033[2J\n')"; echo z > tmp; rm tmp; echo z > tmp; mv tmp replaced; rm replaced; mv swapped elsewhere; rm -f same; ln -s ` + filepath.Join(h.Base, "secret") + ` same || ln -s nothing same; ` + hostile
	done := m.Run("a", "--", "sh", "-c", work)
	require.Zero(t, done.Code, done)
	// The host swaps a link in where the agent cannot, as one that races would.
	require.NoError(t, os.Remove(h.Scope("a", "same")))
	require.NoError(t, os.Symlink(filepath.Join(h.Base, "secret"), h.Scope("a", "same")))

	out := h.Must("changes", "a")
	for _, want := range []string{`(?m)^removed +[1-9]\d* .* gone$`, `(?m)^changed +[1-9]\d* .* kept$`, `(?m)^added +[1-9]\d* .* "new file"$`, `(?m)^added .* d/fifo \(other\)$`,
		`(?m)^removed .* swapped$`, `(?m)^removed .* replaced$`, `(?m)^added .* elsewhere$`, `(?m) same \(link\)$`, `"d/\\x1b\[2J"`, `(?m)^-two$`, `(?m)^\+2$`, `(?m)^-old$`, `of commit [0-9a-f]{12} of the agent's own repository`, `changes in \.git are not listed`} {
		assert.Regexp(t, want, out)
	}
	for _, not := range []string{"\x1b", "SECRET", " tmp\n", "record: denials", "not looked at"} {
		assert.NotContains(t, out, not)
	}
	assert.NoFileExists(t, sign)

	// A copy from before is an old text that the agent cannot rewrite.
	before := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(before, "kept"), []byte("one\n\x1b[31mold\n"), 0o644))
	require.NoError(t, unix.Mkfifo(filepath.Join(before, "elsewhere"), 0o644))
	out = h.Must("changes", "a", "--since", "1h", "--against", before)
	assert.Contains(t, out, `-\u001b[31mold`)
	assert.NotContains(t, out, "-two")

	var report struct {
		Changes []struct{ Path, Kind, Diff string }
		Notes   []string
	}
	require.NoError(t, json.Unmarshal([]byte(h.Must("changes", "a", "--json", "--names")), &report))
	assert.NotEmpty(t, report.Changes)
	for _, c := range report.Changes {
		assert.Empty(t, c.Diff)
	}
	_, errs, code := h.Try("changes", "b")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "give --since")
}

// TestChangesOfTreeAlone: with record: denials the tree says what programs changed, and the
// output says what it cannot know. Without a daemon there is no diff, and no git on the host.
func TestChangesOfTreeAlone(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "", "b": ""})
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	require.NoError(t, os.WriteFile(h.Scope("a", "kept"), []byte("x"), 0o666))
	require.NoError(t, os.WriteFile(h.Scope("a", "gone"), []byte("x"), 0o666))
	require.NoError(t, exec.Command("touch", "-d", "2000-01-01", h.Scope("a", "kept")).Run())
	require.NoError(t, exec.Command("touch", "-d", "2000-01-01", filepath.Join(h.Base, "agents.d", "a.md")).Run())
	require.Zero(t, m.Run("a", "--", "sh", "-c", "echo x > kept").Code)
	assert.Regexp(t, `^a since [^\n]*: 1 change\n`, h.Must("changes", "a", "--names"))
	_, errs, code := h.Try("audit", "--agent", "nosuch")
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, `unknown agent "nosuch"`)
	assert.Empty(t, h.Must("audit", "--agent", "b", "--denied"), "it has a definition")
	require.Zero(t, m.Run("a", "--", "sh", "-c", "echo y >> kept; touch -d 2000-01-01 kept; rm gone; echo z > new").Code)
	h.Must("call", "--agent", "a", "write_file", "path=tool", "content=x")
	out := h.Must("changes", "a", "--since", "1h")
	assert.Contains(t, out, "note: what programs removed is not known: set view: {record: writes} in "+filepath.Join(h.Base, "agents.d", "a.md")+" for the next sessions")
	assert.Regexp(t, `(?m)^(added|changed) +0 .* kept$`, out, "the modification time is the program's to set, that of the inode is not")
	assert.Regexp(t, `(?m)^added +0 .* new$`, out)
	assert.Regexp(t, `(?m)^added +1 .* tool$`, out)
	assert.NotContains(t, out, "gone")
	assert.NotContains(t, out, "has changed since then")
	before := t.TempDir()
	for _, name := range []string{"kept", "gone", "d/gone too"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(before, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(before, name), []byte("x"), 0o644))
	}
	out = h.Must("changes", "a", "--since", "1h", "--against", before)
	assert.Regexp(t, `(?m)^removed +0 +- +gone$`, out)
	assert.Regexp(t, `(?m)^removed +0 +- +"d/gone too"$`, out)
	assert.Regexp(t, `(?m)^-x$`, out)
	assert.NotRegexp(t, `removed .* kept`, out)
	h.Define("a", "durable: true")
	assert.Contains(t, h.Must("changes", "a", "--since", "1h"), "note: agents.d/a.md has changed since then")
	h.Stop()
	out = h.Must("changes", "a", "--since", "1h")
	assert.Contains(t, out, "no daemon runs that could start git in a sandbox")
	assert.Equal(t, 1, strings.Count(out, " new\n"))
}

// TestChangesAfterCalls: calls after a command are no sessions of their own, with and without
// a daemon.
func TestChangesAfterCalls(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	require.Zero(t, m.Run("a", "--", "sh", "-c", "echo x > of-run").Code)
	h.Must("call", "--agent", "a", "write_file", "path=of-call", "content=x")
	h.Must("call", "--agent", "a", "bash", "command=echo x > of-bash")
	out := h.Must("changes", "a", "--names")
	for _, name := range []string{"of-run", "of-call", "of-bash"} {
		assert.Regexp(t, `(?m)^added .* `+name+`$`, out)
	}
	h.Stop()
	h.Must("call", "--agent", "a", "write_file", "path=later", "content=x")
	out = h.Must("changes", "a", "--names")
	assert.Regexp(t, `(?m)^added .* of-run$`, out)
	assert.Regexp(t, `(?m)^added .* later$`, out)
}
