package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestHeldOneLine: a run whose changes are held says so in one line, with their number, and the commands for them.
func TestHeldOneLine(t *testing.T) {
	p := newBesideProject(t, 0)
	o := p.as("run", "--dir", ".", "--changes", "held", "--with", "../lib", "--", "sh", "-c", "echo x >a; echo y >../lib/b")
	require.Zero(t, o.Code, o.Stderr)
	assert.Equal(t, "scopefs: 2 changes are held: scopefs diff, commit or discard\n", o.Stderr)
	p.must("discard", "--path", "a")
	o = p.as("run", "--dir", ".", "--changes", "held", "--with", "../lib", "--", "true")
	assert.Contains(t, o.Stderr, "scopefs: 1 change is held: scopefs diff, commit or discard\n")
	p.must("discard", "--all")
	o = p.as("run", "--dir", ".", "--changes", "held", "--", "true")
	assert.Contains(t, o.Stderr, "scopefs: nothing is held\n")
	p.must("branch", "two")
	o = p.as("run", "--dir", ".", "--branch", "two", "--with", "../lib", "--", "sh", "-c", "echo x >a; echo y >../lib/b")
	assert.Equal(t, "scopefs: 2 changes are held: scopefs diff two, commit two or discard two\n", o.Stderr)
}

// TestBranchListRoots: what a layer holds of a further directory is listed as that, by branch list and where diff asks for a layer.
func TestBranchListRoots(t *testing.T) {
	t.Parallel()
	p := newBesideProject(t, 0)
	lib := p.top + "/lib"
	p.must("run", "--dir", ".", "-q", "--changes", "held", "--with", "../lib", "--", "sh", "-c", "echo x >a; echo y >../lib/b")
	list := p.must("branch", "list")
	assert.Regexp(t, `BRANCH +AGENT +ROOT +FORKED +CHANGES`, list)
	assert.Regexp(t, `\nheld +proj-\S+ +- +\S+ \S+ +1 `, list)
	assert.Regexp(t, `\nheld +proj-\S+ +`+lib+` +\S+ \S+ +1 `, list)
	assert.NotContains(t, list, "held-lib")
	assert.Equal(t, "b\n", p.must("diff", "--name-only", "--root", "../lib"))
	assert.Contains(t, p.must("diff", "--root", "../lib"), "held, "+lib+": 1 change\n")

	p.must("branch", "two")
	p.must("run", "--dir", ".", "-q", "--branch", "two", "--with", "../lib", "--", "sh", "-c", "echo z >../lib/b")
	for _, words := range [][]string{{"diff"}, {"diff", "--root", "../lib"}} {
		o := p.as(words...)
		assert.Equal(t, 2, o.Code, o.Stdout)
		assert.Contains(t, o.Stderr, "which changes: give --branch held, or --branch two\n")
		assert.Regexp(t, `\nheld +proj-\S+ `, o.Stderr)
		assert.Regexp(t, `\ntwo +proj-\S+ `, o.Stderr)
		assert.NotContains(t, o.Stderr, "-lib-")
	}
	assert.Regexp(t, `\ntwo +proj-\S+ +`+lib+` .* held 1\n`, p.must("branch", "list"), "both change one path")
	assert.Equal(t, lib+"/b\n", p.must("diff", "--branch", "two", "--name-only"))
}

// TestChangesFolded: a path that was removed again and again is one line with a number; --each lists each.
func TestChangesFolded(t *testing.T) {
	p := newBesideProject(t, 0)
	for range 3 {
		require.NoError(t, os.WriteFile(p.top+"/proj/again", []byte("text"), 0o644))
		p.must("run", "--dir", ".", "-q", "--", "rm", "again")
	}
	list := p.must("changes", "--since", "1h")
	assert.Contains(t, list, ": 3 changes\n")
	assert.Equal(t, 1, strings.Count(list, "again"), list)
	assert.Regexp(t, `removed +4 +\S+ \S+ +rm +- +again \(3 times\)\n`, list)
	assert.Equal(t, "again\n", p.must("changes", "--since", "1h", "--name-only"))
	list = p.must("changes", "--since", "1h", "--each")
	assert.Equal(t, 3, strings.Count(list, "again\n"), list)
	assert.Equal(t, 3, strings.Count(p.must("changes", "--since", "1h", "--json"), `"again"`), "programs get each")
}

// TestChangesAnew: the list of what all agents changed last has a command that shows it, also of a directory that was made anew, or is gone.
func TestChangesAnew(t *testing.T) {
	p := newBesideProject(t, 0)
	p.must("run", "--dir", ".", "-q", "--", "sh", "-c", "echo x >a")
	id := strings.TrimSuffix(strings.Fields(p.must("changes"))[0], ",")
	command := func() []string {
		t.Helper()
		rows := strings.Split(strings.TrimSpace(p.must("changes", "--all")), "\n")
		require.Len(t, rows, 2, rows)
		_, command, ok := strings.Cut(rows[1], "scopefs ")
		require.True(t, ok, rows)
		return strings.Fields(command)
	}
	assert.Contains(t, p.must(command()...), " a\n")
	require.NoError(t, os.Rename(p.top+"/proj", p.top+"/moved"))
	require.NoError(t, os.Mkdir(p.top+"/proj", 0o755))
	assert.Contains(t, p.must(command()...), " a")
	for range 2 { // before and after an agent has run in it
		assert.Contains(t, p.must("changes", id), " a", "the line of a run in the new directory says so")
		assert.Contains(t, p.as("diff", id).Stderr, "not held")
		p.must("run", "--dir", ".", "-q", "--", "true")
	}
	require.NoError(t, os.Remove(p.top+"/proj"))
	p.in = "lib"
	assert.Equal(t, "audit", command()[0])
	assert.Contains(t, p.must(command()...), id)
}

// TestSetAgain: set changes what set has written, in every form of a scalar.
func TestSetAgain(t *testing.T) {
	p := newBesideProject(t, 0)
	p.must("run", "--dir", ".", "-q", "--", "true")
	file, err := filepath.Glob(filepath.Join(p.top, "../agents/.local/state/scopefs/proj-*/agents.d/proj-*.md"))
	require.NoError(t, err)
	require.Len(t, file, 1)
	for _, value := range []string{"plain", `"a \"quoted\" one"`, `"tab\there"`, `'it''s'`, `"#"`, `"\u00e9"`, "last"} {
		o := p.as("set", "-y", "env.A", value)
		require.Zero(t, o.Code, "%s: %s", value, o.Stderr)
		text, err := os.ReadFile(file[0])
		require.NoError(t, err)
		assert.Equal(t, 1, strings.Count(string(text), "env:"), "%s", text)
		assert.Contains(t, string(text), "env: {A: "+value+"}\n")
	}
}

// TestAllowShowsOne: allow and set show the elements that change, not the others of the same line.
func TestAllowShowsOne(t *testing.T) {
	p := newBesideProject(t, 0)
	p.must("run", "--dir", ".", "-q", "--", "true")
	p.must("allow", "-y", "one.example", "two.example")
	out := p.must("allow", "-y", "three.example:8443")
	assert.Contains(t, out, "\n+network.allow: {host: three.example, ports: [8443]}\n")
	assert.NotContains(t, out, "one.example")
	p.must("set", "-y", "limits", "{pids: 200, memory: 1GiB}")
	out = p.must("set", "-y", "limits.pids", "300")
	assert.Contains(t, out, "\n-limits.pids: 200\n+limits.pids: 300\n")
	assert.NotContains(t, out, "1GiB")
}

// TestMixedKinds: a session's changes of directories that keep, and of others that hold, are in one list, and one undo takes them back.
func TestMixedKinds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ own, lib, other string }{
		"roots hold":       {"kept", "held", "kept"},
		"all but one hold": {"held", "held", "kept"},
		"own holds":        {"held", "kept", "kept"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newBesideProject(t, 0)
			p.must("run", "--dir", ".", "-q", "--", "true")
			p.must("set", "-y", "view.changes", c.own)
			p.must("set", "-y", "view.roots", "[{dir: "+p.top+"/lib, changes: "+c.lib+"}, {dir: "+p.top+"/other, changes: "+c.other+"}]")
			before := []string{p.content("proj/a"), p.content("lib/b"), p.content("other/c")}
			p.must("run", "--dir", ".", "-q", "--", "sh", "-c", "echo x >a; echo y >../lib/b; echo z >../other/c")
			names := "a\n" + p.top + "/lib/b\n" + p.top + "/other/c\n"
			assert.Equal(t, names, p.must("changes", "--name-only"))
			table := p.must("changes")
			assert.Contains(t, table, ": 3 changes")
			for path, kind := range map[string]string{"a": c.own, p.top + "/lib/b": c.lib, p.top + "/other/c": c.other} {
				if kind == "held" {
					assert.Contains(t, table, " "+path+" (held)\n")
				} else {
					assert.Contains(t, table, " "+path+"\n")
				}
			}
			assert.Contains(t, p.must("changes", "-p"), "-theirs\n+y\n")
			assert.Equal(t, p.top+"/lib/b\n", p.must("changes", "--name-only", "../lib"))
			out := p.must("undo", "--session", "last")
			assert.Contains(t, out, "undo, the last session: ")
			assert.Equal(t, before, []string{p.content("proj/a"), p.content("lib/b"), p.content("other/c")})
			assert.Contains(t, p.as("diff").Stdout, "nothing differs", "nothing is held any more")
			p.must("redo")
			assert.Equal(t, names, p.must("changes", "--name-only"))
		})
	}
}

// TestCommitGitRoots: commit --git takes the commits of each directory as the branch of its repository.
func TestCommitGitRoots(t *testing.T) {
	for who, uid := range map[string]int{"root": 0, "user": 1234} {
		t.Run(who, func(t *testing.T) {
			p := newBesideProject(t, uid)
			git := "git -c user.name=a -c user.email=a@b -c commit.gpgsign=false "
			host := func(script string) {
				t.Helper()
				o := harness.Finish(t, harness.AsUser(t, uid, "sh", "-ec", "cd "+p.top+"; export HOME=/nonexistent; "+script))
				require.Zero(t, o.Code, o.Stderr)
			}
			host("for d in proj lib; do cd " + p.top + "/$d; git init -q -b main; git add -- [ab]; " + git + "commit -qm first; done")
			p.must("run", "--dir", ".", "-q", "--changes", "held", "--with", "../lib", "--with", "../other", "--", "sh", "-ec",
				"echo x >a; "+git+"commit -qam own; cd ../lib; echo y >b; "+git+"commit -qam theirs; echo z >../other/c")
			o := p.as("commit", "--git", "by-agent")
			require.Zero(t, o.Code, o.Stderr)
			assert.Contains(t, o.Stdout, "held, commit: 1 commit is the branch by-agent: git merge by-agent\n")
			assert.Contains(t, o.Stdout, "held, commit: 1 commit is the branch by-agent of "+p.top+"/lib: git -C "+p.top+"/lib merge by-agent\n")
			assert.NotContains(t, o.Stdout+o.Stderr, p.top+"/other", "no repository")
			host("test $(git -C proj log --format=%s -1 by-agent) = own; test $(git -C lib log --format=%s -1 by-agent) = theirs")
		})
	}
}
