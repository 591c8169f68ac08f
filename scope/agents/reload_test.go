package agents

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/internal/opentest"
	"github.com/scopefs/scopefs/scope"
)

// later makes a snapshot that was taken when all files had been left alone for
// long.
func later(s *Snapshot) *Snapshot {
	s.dirs[0].Taken = s.dirs[0].Taken.Add(time.Hour)
	for rel, at := range s.extendDirs {
		if at != (folder.Dated{}) {
			at.Taken = at.Taken.Add(time.Hour)
			s.extendDirs[rel] = at
		}
	}
	for _, f := range s.files {
		if f.text != nil {
			f.text.Taken = f.text.Taken.Add(time.Hour)
		}
	}
	for _, e := range s.extensions {
		e.text.Taken = e.text.Taken.Add(time.Hour)
	}
	return s
}

// TestReloadReadsWhatChanged: of a thousand definitions a reload opens the one
// that is another, and makes nothing anew of the rest.
func TestReloadReadsWhatChanged(t *testing.T) {
	const count = 1000
	agents := map[string]string{}
	for i := range count {
		agents[fmt.Sprintf("a%d", i)] = fmt.Sprintf("members: [a%d]", (i+1)%count)
	}
	base := testBase{agents: agents, extensions: map[string]string{"e": "agents: [a1]\nmcp_servers: {s: {command: x}}"}}.make(t)
	opened := opentest.Count(t, filepath.Join(base, agentsDir))
	all, errs := Load(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.Equal(t, count, opened())

	next, errs := later(all).Reload(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.Zero(t, opened())
	assert.Same(t, all.Agents["a5"], next.Agents["a5"])
	assert.True(t, later(next).Current(base, "a5"))
	assert.Zero(t, opened())

	writeFile(t, base, "agents.d/a5.md", "---\nname: a5\ndescription: another\n---\n")
	assert.False(t, next.Current(base, "a5"))
	assert.True(t, next.Current(base, "a6"))
	opened()
	last, errs := next.Reload(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.Equal(t, 1, opened())
	assert.Equal(t, "another", last.Agents["a5"].Description)
	assert.Equal(t, []scope.ID{"a7"}, last.Agents["a6"].Grants.Members())
	assert.Same(t, all.Agents["a6"], last.Agents["a6"])

	// One more: whoever names members may mean it, but no file is read for that.
	writeFile(t, base, "agents.d/new.md", "---\nname: new\ndescription: d\nmembers: [\"*\"]\n---\n")
	assert.False(t, last.Current(base, "a6"))
	opened()
	more, errs := later(last).Reload(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.Equal(t, 1, opened())
	assert.Len(t, more.Agents["new"].Grants.Members(), count)
	assert.True(t, more.Agents["a6"].Grants.Equal(last.Agents["a6"].Grants))
}

// TestCurrent: whatever a reload would find, Current does not deny.
func TestCurrent(t *testing.T) {
	change := func(name, text string) func(t *testing.T, base string) {
		return func(t *testing.T, base string) { writeFile(t, base, name, text) }
	}
	cases := map[string]func(t *testing.T, base string){
		"the agent":           change("agents.d/a.md", "---\nname: a\ndescription: e\n---\n"),
		"the agent, in place": change("agents.d/a.md", "---\nname: a\ndescription: e\n---\n "),
		"what did not load":   change("agents.d/bad.md", "---\nname: bad\ndescription: e\n---\n"),
		"another agent comes": change("agents.d/z.md", ""),
		"another agent goes":  func(t *testing.T, base string) { require.NoError(t, os.Remove(filepath.Join(base, "agents.d/b.md"))) },
		"an extension":        change("extensions.d/e.yaml", "name: e\ndescription: other\n"),
		"a bad extension":     change("extensions.d/f.yaml", "name: f\n"),
		"an extension comes":  change("extensions.d/g.yaml", "name: g\n"),
		"extensions go":       func(t *testing.T, base string) { require.NoError(t, os.RemoveAll(filepath.Join(base, "extensions.d"))) },
		"a skill comes":       change("skills/new/SKILL.md", ""),
		"a skill goes": func(t *testing.T, base string) {
			require.NoError(t, os.Remove(filepath.Join(base, "skills/one/SKILL.md")))
		},
		"agents.d is replaced": func(t *testing.T, base string) {
			require.NoError(t, os.Rename(filepath.Join(base, "agents.d"), filepath.Join(base, "x")))
		},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			base := testBase{agents: map[string]string{"a": "", "b": "", "bad": "x: y"}, skills: []string{"one"}, extensions: map[string]string{"e": "description: d"}}.make(t)
			if name == "a bad extension" {
				writeFile(t, base, "extensions.d/f.yaml", "name: g\n")
			}
			all, _ := Load(base, Host{Tools: ours()})
			if name != "a bad extension" {
				require.True(t, later(all).Current(base, "a"))
				require.True(t, all.Current(base, "bad"))
				require.True(t, all.Current(base, "nobody"))
			}
			change(t, base)
			id := scope.ID("a")
			if name == "what did not load" {
				id = "bad"
			}
			assert.False(t, all.Current(base, id))
		})
	}
	assert.False(t, (&Snapshot{}).Current(t.TempDir(), "a"), "nothing was ever loaded")

	base, user := testBase{agents: map[string]string{"a": "protect: ['*']"}}.make(t), t.TempDir()
	writeFile(t, user, "protect.d/mine.yaml", "paths: [x]\n")
	require.NoError(t, os.Chmod(filepath.Join(user, "protect.d"), 0o777))
	all, _ := Load(base, Host{Tools: ours(), User: user})
	require.Empty(t, all.Agents, "others can write the lists")
	require.NoError(t, os.Chmod(filepath.Join(user, "protect.d"), 0o755))
	require.NoError(t, os.Remove(filepath.Join(user, "protect.d/mine.yaml")))
	assert.False(t, later(all).Current(base, "a"), "what could not be read has gone")
}

// TestReloadAtOnce: what changes again within the clock's tick, and stays as
// long as it was, is seen.
func TestReloadAtOnce(t *testing.T) {
	base := testBase{agents: map[string]string{"a": ""}}.make(t)
	all, errs := Load(base, Host{Tools: ours()})
	for i := range 300 {
		require.Empty(t, errs)
		want := fmt.Sprintf("%03d", i)
		writeFile(t, base, "agents.d/a.md", "---\nname: a\ndescription: \""+want+"\"\n---\n")
		assert.False(t, all.Current(base, "a"))
		all, errs = all.Reload(base, Host{Tools: ours()})
		require.Equal(t, want, all.Agents["a"].Description)
	}
}
