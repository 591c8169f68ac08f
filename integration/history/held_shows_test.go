package history

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// shows are commands of the agent whose changes are committed or dropped, of the host afterwards, and what the agent sees then.
var shows = map[string]struct{ agent, settle, host, look, sees, differs string }{
	"a file":                     {"echo 22 >a", "commit", "echo 333 >a", "cat a", "333", ""},
	"a file that the host drops": {"echo 22 >a", "commit", "rm a", "cat a 2>&1 | wc -l; ls", "1\nb\nd", ""},
	"a directory for another":    {"mkdir n; touch n/y", "commit", "rm -r n; mkdir n; touch n/z", "ls n", "z", ""},
	"a file for a directory":     {"mkdir n; touch n/y", "commit", "rm -r n; echo f >n", "cat n", "f", ""},
	"a removed file":             {"rm a", "commit", "echo back >a", "cat a", "back", ""},
	"a moved directory":          {"mv d e", "commit", "echo 3 >e/x; mkdir d; echo new >d/x", "cat d/x e/x", "new\n3", ""},
	"a part": {"echo 22 >a; echo 22 >b; echo 22 >d/x; rm d/y; mkdir m; echo m >m/1", "commit --path a --path d/**", "echo 333 >a; echo 333 >d/x; echo back >d/y",
		"cat a b d/x d/y m/1", "333\n22\n333\nback\nm", "changed b added m added m/1"},
	"a part that is dropped": {"echo 22 >a; rm b; rm -r d; mkdir d; echo 5 >d/5", "discard --path a --path b", "echo 333 >a; echo 333 >b", "cat a b; ls d", "333\n333\n5",
		"added d/5 removed d/x removed d/y"},
	"all that is dropped": {"echo 22 >a; rm b; mkdir m", "discard --all", "echo 333 >a; echo 333 >b", "cat a b; ls", "333\n333\na\nb\nd", ""},
}

const showsBefore = "echo 1 >a; echo 1 >b; mkdir d; echo 1 >d/x; echo 1 >d/y"

// TestHeldShowsDirectory: after a commit or discard the agent sees what the host changes there, and no diff lists it: without a daemon,
// and with one whose view a session uses, or nobody.
func TestHeldShowsDirectory(t *testing.T) {
	need.Root(t, "its daemon mounts")
	for name, c := range shows {
		uids := []int{0}
		if strings.HasPrefix(name, "a part") {
			uids = append(uids, 12345)
		}
		for _, uid := range uids {
			t.Run(name+map[int]string{0: "/root", 12345: "/user"}[uid], func(t *testing.T) {
				t.Parallel()
				p := newProject(t, uid)
				p.host(showsBefore)
				run := func(script string) harness.Outcome {
					return p.scopefs("run", "--dir", ".", "--changes", "held", "--", "sh", "-c", script)
				}
				require.Zero(t, run(c.agent).Code)
				o := p.scopefs(strings.Fields(c.settle)...)
				require.Zero(t, o.Code, o.Stderr)
				p.host(c.host)
				assert.Equal(t, c.sees, strings.TrimSpace(run(c.look).Stdout))
				o = p.scopefs("diff")
				assert.Equal(t, c.differs, tableOf(o.Stdout), o.Stdout)
				assert.Zero(t, p.scopefs("discard", "--all").Code)
				assert.Empty(t, tableOf(p.scopefs("diff").Stdout))
			})
		}
		for _, used := range []bool{false, true} {
			t.Run(name+map[bool]string{false: "/unused", true: "/used"}[used], func(t *testing.T) {
				t.Parallel()
				h := harness.LayOut(t, map[string]string{"a": "view: {changes: held}"})
				sh := func(script string) {
					cmd := exec.Command("sh", "-ec", script)
					cmd.Dir = h.Scope("a")
					out, err := cmd.CombinedOutput()
					require.NoError(t, err, "%s", out)
				}
				sh(showsBefore)
				k := started(h)
				k.run("a", c.agent)
				if used {
					h.Connect("a").Bash("true")
				} else {
					h.Must("up", "a")
				}
				k.Must(append(append([]string{}, strings.Fields(c.settle)[0], "a"), strings.Fields(c.settle)[1:]...)...)
				sh(c.host)
				h.Eventually("the agent sees the directory", func() bool {
					cmd := exec.Command("sh", "-c", c.look)
					cmd.Dir = h.View("a")
					out, _ := cmd.CombinedOutput()
					return c.sees == strings.TrimSpace(string(out))
				})
				assert.Equal(t, c.differs, tableOf(k.Must("diff", "a")))
			})
		}
	}
}

// tableOf returns the kinds and paths of a table of changes.
func tableOf(table string) string {
	var all []string
	for _, line := range strings.Split(table, "\n") {
		words := strings.Fields(line)
		if len(words) > 2 && (words[0] == "added" || words[0] == "changed" || words[0] == "removed") {
			all = append(all, words[0]+" "+strings.TrimSuffix(words[len(words)-1], "/"))
		}
	}
	return strings.Join(all, " ")
}

// TestHeldChanges: changes lists what a layer holds, however the layer or its session is named, and sends nobody to diff.
func TestHeldChanges(t *testing.T) {
	t.Parallel()
	p := newProject(t, 12345)
	p.host("echo 1 >a; echo 1 >b")
	require.Zero(t, p.scopefs("run", "-q", "--dir", ".", "--changes", "held", "--", "sh", "-c", "echo 2 >a; rm b").Code)
	o := p.scopefs("changes", "--list", "--branch", "held", "--json")
	var list []struct{ Session string }
	require.NoError(t, json.Unmarshal([]byte(o.Stdout), &list), o.Stderr)
	require.Len(t, list, 1)
	require.Zero(t, p.scopefs("run", "-q", "--dir", ".", "--", "sh", "-c", "echo 2 >c").Code)
	changes := func(words ...string) string {
		o := p.scopefs(append([]string{"changes", "--name-only"}, words...)...)
		return o.Stdout + o.Stderr
	}
	assert.Equal(t, "c\n", changes())
	assert.Equal(t, "a\nb\n", changes("--branch", "held"))
	assert.Equal(t, "a\nb\n", changes("--session", list[0].Session))
	assert.Equal(t, "a\n", changes("--branch", "held", "a"))
	assert.Equal(t, p.scopefs("diff").Stdout, p.scopefs("changes", "--branch", "held").Stdout)
	require.Zero(t, p.scopefs("discard", "--all").Code)
	require.Zero(t, p.scopefs("set", "view.changes", "held", "--yes").Code)
	require.Zero(t, p.scopefs("run", "-q", "--dir", ".", "--", "sh", "-c", "echo 2 >d").Code)
	assert.Equal(t, "d\n", changes())
}

// TestShowBeforeHistory: show of a time before the history says so in one line, and what it shows.
func TestShowBeforeHistory(t *testing.T) {
	t.Parallel()
	p := newProject(t, 12345)
	p.host("echo 1 >a")
	require.Zero(t, p.scopefs("run", "-q", "--dir", ".", "--", "sh", "-c", "echo 2 >a").Code)
	o := p.scopefs("show", "a@2h")
	assert.Equal(t, "1\n", o.Stdout)
	assert.Regexp(t, `^scopefs: a@2h: the history begins at \S+ \S+: the version is that before the first change: `+
		`give a later time, or a name of scopefs changes --list\n$`, o.Stderr)
	o = p.scopefs("show", "a@1ms")
	assert.Equal(t, "2\n", o.Stdout)
	assert.Empty(t, o.Stderr)
}
