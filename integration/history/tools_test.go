package history

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
)

type args = map[string]any

// listed returns the changes that a session gets: kind and path, and the calls by path.
func listed(u *harness.User, a args) (changes []string, calls map[string]string) {
	u.T.Helper()
	calls = map[string]string{}
	for _, c := range u.Call("changes", a)["changes"].([]any) {
		c := c.(map[string]any)
		path := c["path"].(string)
		changes = append(changes, c["kind"].(string)+" "+path)
		if ids, _ := c["calls"].([]any); len(ids) > 0 {
			calls[path] = ids[0].(string)
		}
	}
	return changes, calls
}

// TestTools: a session sees what its calls changed, and takes back one call or everything since its checkpoint.
func TestTools(t *testing.T) {
	k := keep(t, map[string]string{"a": "view: {changes: kept}"})
	harness.Plant(t, k.Scope("a"), "old=one\n")
	u := k.Connect("a")
	u.Call("write_file", args{"path": "early", "content": "x"})
	point := u.Call("checkpoint", args{"name": "green"})
	assert.Equal(t, "green", point["name"])
	u.Call("write_file", args{"path": "old", "content": "two\n", "mode": "overwrite"})
	u.Bash("mkdir d; echo new >d/f; rm early")
	changes, calls := listed(u, args{"checkpoint": "green"})
	assert.Equal(t, []string{"added d", "added d/f", "removed early", "changed old"}, changes)
	changes, _ = listed(u, args{"call": calls["old"]})
	assert.Equal(t, []string{"changed old"}, changes)
	changes, _ = listed(u, args{"paths": []string{"/workspace/d", "early"}})
	assert.Equal(t, []string{"added d", "added d/f"}, changes, "what the session made and removed again is no change")
	assert.Contains(t, u.Text("changes", args{"paths": []string{"old"}, "diff": true}), "-one\n+two\n")

	out := u.Call("undo", args{"call": calls["old"], "paths": []string{"old"}})
	assert.Empty(t, out["conflicts"])
	assert.Empty(t, u.Call("glob", args{"pattern": "**/.scopefs-*"})["matches"])
	assert.Equal(t, "one\n", harness.ReadAll(t, k.Scope("a", "old")))
	out = u.Call("undo", args{"checkpoint": point["checkpoint"]})
	assert.Empty(t, out["conflicts"])
	assert.Equal(t, "x", harness.ReadAll(t, k.Scope("a", "early")))
	assert.NoDirExists(t, k.Scope("a", "d"))
	var done []audit.Event
	for _, e := range k.Events("a") {
		if e.Event != audit.KindHistory {
			continue
		}
		assert.Equal(t, k.Calls("a", "checkpoint")[0].Session, e.Session)
		assert.NotEmpty(t, e.Call)
		assert.Nil(t, e.UID)
		if e.Outcome == "done" {
			done = append(done, e)
		}
	}
	require.Len(t, done, 3)
	assert.Equal(t, "call "+calls["old"], done[1].Target)

	undo := k.lastUndo("a")
	_, err := k.client.HistoryOf("a").Undo(t.Context(), history.Selection{Undo: true}, "")
	assert.ErrorContains(t, err, "there is no undo that could be taken back", "of the operator")
	k.Must("redo", "a", undo)
	assert.Equal(t, "new\n", harness.ReadAll(t, k.Scope("a", "d/f")))
}

// lastUndo returns the id of an agent's last undo, whoever did it.
func (k *keeper) lastUndo(id scope.ID) (last string) {
	k.T.Helper()
	all, err := k.client.HistoryOf(id).Generations(k.T.Context(), time.Time{})
	require.NoError(k.T, err)
	for _, g := range all {
		if g.Undo != nil {
			last = g.ID
		}
	}
	return last
}

// TestToolsOfOthers: no argument reaches the changes of another session, of another agent or of the host, nor a checkpoint of
// the operator; and a session's checkpoint does not stand for one of the operator.
func TestToolsOfOthers(t *testing.T) {
	k := keep(t, map[string]string{"a": "view: {changes: kept}", "b": "view: {changes: kept}"})
	k.checkpoint("a", "mine")
	mine, other, stranger := k.Connect("a"), k.Connect("a"), k.Connect("b")
	point := mine.Call("checkpoint", args{"name": "green"})["checkpoint"].(string)
	mine.Call("write_file", args{"path": "mine", "content": "one"})
	mine.Call("write_file", args{"path": "shared", "content": "one"})
	k.Must("run", "-T", "a", "--", "sh", "-c", "echo run >run; echo more >>shared") // another session
	other.Call("write_file", args{"path": "other", "content": "one"})
	_, calls := listed(mine, nil)
	before := harness.Dumped(t, k.Scope("a"), harness.Times)
	for _, u := range []*harness.User{other, stranger} {
		changes, _ := listed(u, args{"call": calls["mine"]})
		assert.Empty(t, changes)
		assert.Equal(t, tools.NotFound, u.Fails("undo", args{"call": calls["mine"]}).Code)
		for _, name := range []string{"green", point, "mine", "last", ""} {
			for _, tool := range []string{"changes", "undo"} {
				if name != "" {
					assert.Equal(t, tools.NotFound, u.Fails(tool, args{"checkpoint": name}).Code, "%s %s", tool, name)
				}
			}
		}
	}
	session := k.Calls("a", "checkpoint")[0].Session
	assert.Equal(t, tools.NotFound, other.Fails("undo", args{"call": session}).Code)
	assert.Equal(t, tools.Invalid, other.Fails("undo", args{"session": session}).Code)
	assert.Equal(t, tools.Invalid, other.Fails("undo", args{"call": "x", "client": session}).Code)
	assert.Equal(t, tools.Invalid, mine.Fails("undo", nil).Code)
	assert.Equal(t, tools.Invalid, mine.Fails("undo", args{"call": calls["mine"], "checkpoint": "green"}).Code)
	assert.Equal(t, tools.NotFound, mine.Fails("changes", args{"paths": []string{"mine", "../b"}}).Code)
	assert.Equal(t, audit.Violation, k.Last("a", "changes").Verdict)
	assert.Equal(t, tools.OutsideScope, mine.Fails("undo", args{"checkpoint": "green", "paths": []string{"/etc"}}).Code)
	assert.Equal(t, audit.Violation, k.Last("a", "undo").Verdict)
	harness.SameTrees(t, before, harness.Dumped(t, k.Scope("a"), harness.Times), "")

	changes, _ := listed(mine, args{"checkpoint": "green"})
	assert.Equal(t, []string{"added mine", "added shared"}, changes)
	out := mine.Call("undo", args{"checkpoint": "green"})
	require.Len(t, out["conflicts"], 1)
	assert.Equal(t, "shared", out["conflicts"].([]any)[0].(map[string]any)["path"])
	assert.NoFileExists(t, k.Scope("a", "mine"))
	assert.Equal(t, "onemore\n", harness.ReadAll(t, k.Scope("a", "shared")))
	assert.FileExists(t, k.Scope("a", "other"))
	assert.FileExists(t, k.Scope("a", "run"))

	mine.Call("checkpoint", args{"name": "mine"})
	of := func(sel history.Selection) (all []string) {
		for _, e := range k.must("a", query.Request{Changes: &sel}).Entries {
			all = append(all, e.Change.Path)
		}
		return all
	}
	assert.Equal(t, []string{"other", "run", "shared"}, of(history.Selection{Checkpoint: "mine"}), "since that of the operator")
	for _, name := range []string{"a/b", "a@b", "a\nb"} {
		assert.Equal(t, tools.Invalid, mine.Fails("checkpoint", args{"name": name}).Code, name)
	}
}

// TestToolsRules: the rules of now decide what a session sees of its own changes, and what it takes back.
func TestToolsRules(t *testing.T) {
	const definition = "---\nname: a\nview: {changes: kept, access: %s, paths: {%s}}\n%s---\n"
	k := keep(t, map[string]string{"a": "view: {changes: kept}"})
	harness.Plant(t, k.Scope("a"), "hidden=SECRET\n", "dir/moved=SECRET\n", "fixed=one\n", "box/run=one\n", "twice=one\n", "plain=one\n")
	u := k.Connect("a")
	u.Call("checkpoint", args{"name": "p"})
	u.Bash("echo more >>hidden; echo more >>dir/moved; mkdir x; mv dir/moved x/moved")
	u.Bash("echo two >fixed; echo two >twice; echo two >plain; mv box tree; echo evil >tree/run; ln -s fixed link; rm link")
	require.NoError(t, os.Link(k.Scope("a", "twice"), k.Scope("a", "second")))
	k.Put("agents.d/a.md", fmt.Sprintf(definition, "write", `hidden: hide, "x/**": hide, fixed: read, box/run: read, second: hide`, ""))
	k.Must("reload")
	text := u.Text("changes", args{"diff": true})
	for _, word := range []string{"SECRET", "hidden", "x/", "more"} {
		assert.NotContains(t, text, word)
	}
	assert.Contains(t, text, "changed fixed by call")
	assert.Contains(t, text, "changed twice by call")
	assert.Contains(t, text, "(no diff: the agent's rules do not let it be read)", "a rule hides another name of it")
	out := fmt.Sprint(u.Call("undo", args{"checkpoint": "p"}))
	for _, word := range []string{"SECRET", "hidden", "x/moved", "x/**"} {
		assert.NotContains(t, out, word)
	}
	assert.Equal(t, "one\n", harness.ReadAll(t, k.Scope("a", "plain")))
	assert.Equal(t, "SECRET\nmore\n", harness.ReadAll(t, k.Scope("a", "hidden")))
	assert.Equal(t, "two\n", harness.ReadAll(t, k.Scope("a", "fixed")))
	assert.FileExists(t, k.Scope("a", "x/moved"))
	assert.NoFileExists(t, k.Scope("a", "box/run"), "a directory does not bring what is below it to a protected path")

	k.Put("agents.d/a.md", fmt.Sprintf(definition, "write", "", "policy: {tools: {ask: [undo]}}\n"))
	k.Must("reload")
	u.Waits("undo", args{"checkpoint": "p"})
	k.Put("agents.d/a.md", fmt.Sprintf(definition, "read", "", ""))
	k.Must("reload")
	assert.NotContains(t, u.List(), "undo")
	assert.Contains(t, u.List(), "changes")
	assert.Equal(t, tools.Denied, u.Fails("undo", args{"checkpoint": "p"}).Code)
	assert.Equal(t, "two\n", harness.ReadAll(t, k.Scope("a", "fixed")))
}

// TestToolsLink: an undo makes no link to what the definition protects, and takes back nothing of a protected file.
func TestToolsLink(t *testing.T) {
	k := keep(t, map[string]string{"a": "view: {changes: kept}"})
	harness.Plant(t, k.Scope("a"), "Makefile=one", "other=one")
	u := k.Connect("a")
	u.Bash("ln -s Makefile link; ln -s other free; echo evil >Makefile")
	u.Call("checkpoint", args{"name": "p"})
	u.Bash("rm link free; echo good >Makefile")
	k.Put("protect.d/make.yaml", "description: make\npaths: [\"**/Makefile\"]\n")
	k.Define("a", "view: {changes: kept}\nprotect: [make]")
	k.Must("reload")
	out := u.Call("undo", args{"checkpoint": "p"})
	assert.Len(t, out["conflicts"], 2)
	link, err := os.Readlink(k.Scope("a", "free"))
	require.NoError(t, err)
	assert.Equal(t, "other", link)
	assert.NoFileExists(t, k.Scope("a", "link"))
	_, err = os.Lstat(k.Scope("a", "link"))
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.Equal(t, "good\n", harness.ReadAll(t, k.Scope("a", "Makefile")))
}

// TestToolsNeed: without a history no agent has the tools, and no definition names them.
func TestToolsNeed(t *testing.T) {
	k := keep(t, map[string]string{"a": "", "b": "view: {changes: kept}\ntools: [changes]"})
	for _, name := range []string{"checkpoint", "changes", "undo"} {
		assert.NotContains(t, k.Connect("a").List(), name)
		k.Put("c.md", "---\nname: c\ntools: [stat, "+name+"]\n---\n")
		out, _, code := k.Try("agents", "check", k.Base+"/c.md")
		assert.NotZero(t, code)
		assert.Contains(t, out, "c.md:3: tools: "+name+" needs the history of the agent's changes: write view: {changes: kept}, or remove it\n")
	}
	b := k.Connect("b")
	assert.Len(t, b.List(), 1)
	assert.Equal(t, tools.Denied, b.Fails("undo", args{"call": "x"}).Code)
}

// TestToolsFlood: a session has the last hundred of its checkpoints, and those of the operator stay.
func TestToolsFlood(t *testing.T) {
	k := keep(t, map[string]string{"a": "view: {changes: kept}"})
	k.checkpoint("a", "mine")
	u := k.Connect("a")
	var ids []string
	for range 103 {
		ids = append(ids, u.Call("checkpoint", nil)["checkpoint"].(string))
	}
	assert.Equal(t, tools.NotFound, u.Fails("changes", args{"checkpoint": ids[2]}).Code)
	listed(u, args{"checkpoint": ids[3]})
	k.must("a", query.Request{Changes: &history.Selection{Checkpoint: "mine"}})
	assert.Len(t, k.must("a", query.Request{Generations: new(time.Time)}).Entries, 101)
}
