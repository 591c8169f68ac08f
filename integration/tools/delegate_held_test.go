package tools

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/tools"
)

// forker is a host whose agent a delegates to b, c and d on branches of its directory.
type forker struct {
	*harness.Host
	a *harness.User
}

const heldTasks = "members: [b]\ndelegate: {changes: held}\n"

func forking(t *testing.T, agents map[string]string, lines ...string) *forker {
	h := harness.Delegating(t, "", agents)
	harness.Plant(t, h.Scope("a"), lines...)
	return &forker{h, h.Connect("a")}
}

// task has b run a script in bash, and returns the task's id and what it changed.
func (f *forker) task(script string) (id, list string) {
	f.T.Helper()
	return f.taskOf("b", "scopefs call bash command='"+script+"'")
}

func (f *forker) taskOf(member, task string) (id, list string) {
	f.T.Helper()
	out := f.a.Call("delegate", args{"member": member, "task": task})
	changes, ok := out["changes"].(map[string]any)
	if !ok {
		return "", ""
	}
	return changes["task"].(string), changes["list"].(string)
}

// steps returns "OP OUTCOME" of what the log has about tasks, with the chain.
func (f *forker) steps(task string) (all []string) {
	for _, e := range f.Events("a") {
		if e.Event == audit.KindHistory && strings.HasPrefix(e.Target, "task "+task) {
			all = append(all, e.Chain+" "+e.Op+" "+e.Outcome)
		}
	}
	return all
}

// left returns the branches on the disk, and what is mounted of them.
func (f *forker) left() (all []string) {
	entries, _ := os.ReadDir(f.Base + "/history")
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "task-") {
			all = append(all, e.Name())
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(f.T, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, f.Base) && strings.Contains(line, "task-") {
			all = append(all, line)
		}
	}
	return all
}

// TestDelegateHeld: a member works on a copy of its caller's files, and the caller takes the changes over: some, all or none.
func TestDelegateHeld(t *testing.T) {
	for name, view := range map[string]string{"direct": "", "kept": "view: {changes: kept}\ntools: ['*']\n"} {
		t.Run(name, func(t *testing.T) {
			f := forking(t, map[string]string{"a": view + heldTasks, "b": ""}, "f=one\n", "gone=1\n", "dir/in=1\n", "swap=1\n")
			dir := f.Scope("a")
			harness.Plant(t, f.Scope("b"), "own=of b")
			out := f.a.Call("delegate", args{"member": "b", "task": `
scopefs call read_file path=f; scopefs call read_file path=own
scopefs call bash command='echo two >f; rm gone; mv dir tree; echo 2 >tree/in; mkdir out; echo 1 >out/log; ln -s f link; chmod 755 swap; cat f' >/dev/null`})
			assert.Contains(t, out["answer"], "one")
			assert.Contains(t, out["answer"], "no such file", "its own files are elsewhere")
			changes := out["changes"].(map[string]any)
			id := changes["task"].(string)
			assert.EqualValues(t, 8, changes["total"])
			assert.Equal(t, "8 changes: 1 removed, 1 moved, 1 mode, 2 changed, 3 added; 1 have no diff", changes["summary"])
			assert.Contains(t, changes["list"], "removed gone\nadded link, a link to f\nmode swap, mode 0644 -> 0755\nmoved dir -> tree/\nchanged f, 4 bytes\n")
			assert.NotContains(t, changes["list"], "-one")
			assert.Equal(t, "one\n", harness.ReadAll(t, dir+"/f"), "nothing reached the directory")
			assert.NoFileExists(t, f.Scope("b", "f"))

			assert.Contains(t, f.a.Text("diff", args{"task": id}), "-one\n+two\n")
			assert.NotContains(t, f.a.Text("diff", args{"task": id, "paths": []string{"out/**"}}), "two")
			assert.Equal(t, tools.Invalid, f.a.Fails("diff", nil).Code)
			part := f.a.Call("commit", args{"task": id, "paths": []string{"f", "out/**"}})
			assert.EqualValues(t, 3, part["done"])
			assert.Equal(t, "two\n", harness.ReadAll(t, dir+"/f"))
			assert.FileExists(t, dir+"/gone")
			rest := f.a.Call("commit", args{"task": id})
			assert.EqualValues(t, 5, rest["done"])
			assert.Equal(t, "2\n", harness.ReadAll(t, dir+"/tree/in"))
			assert.NoFileExists(t, dir+"/gone")
			assert.NoDirExists(t, dir+"/dir")
			to, err := os.Readlink(dir + "/link")
			require.NoError(t, err)
			assert.Equal(t, "f", to)
			info, err := os.Stat(dir + "/swap")
			require.NoError(t, err)
			assert.EqualValues(t, 0o755, info.Mode().Perm())
			assert.Equal(t, tools.NotFound, f.a.Fails("diff", args{"task": id}).Code, "nothing is left of it")
			assert.Empty(t, f.left())
			assert.Equal(t, []string{"a>b fork done", "a>b waits done", "a>b commit begin", "a>b commit done", "a>b commit begin", "a>b commit done",
				"a>b discard done"}, f.steps(id))
			if name == "kept" {
				call := f.Last("a", "commit").Call
				f.a.Call("undo", args{"call": call})
				assert.Equal(t, "1\n", harness.ReadAll(t, dir+"/dir/in"))
				assert.FileExists(t, dir+"/gone")
				assert.Equal(t, "two\n", harness.ReadAll(t, dir+"/f"), "of the first commit")
			}
			id, _ = f.task("echo never >f")
			f.a.Call("discard", args{"task": id})
			assert.Equal(t, tools.NotFound, f.a.Fails("commit", args{"task": id}).Code)
			assert.Equal(t, "two\n", harness.ReadAll(t, dir+"/f"))
			id, _ = f.task("true")
			assert.Empty(t, id, "it changed nothing")
			assert.Empty(t, f.left())
		})
	}
}

// answer has b do a task as a script of the runner, and returns what the script prints.
func (f *forker) answer(script string) (text, id string) {
	f.T.Helper()
	out := f.a.Call("delegate", args{"member": "b", "task": script})
	changes, _ := out["changes"].(map[string]any)
	id, _ = changes["task"].(string)
	return out["answer"].(string), id
}

// TestDelegateHeldRules: on a branch the rules of the caller hold and those of the member, whatever the member may elsewhere.
func TestDelegateHeldRules(t *testing.T) {
	const caller = "tools: ['*']\nview: {paths: {secret: hide, fixed: read}}\nprotect: [git-hooks]\n"
	plant := []string{"secret=SESAME", "fixed=1", "free=1", "mine=1", ".git/hooks/x.sample=1"}
	const script = `
scopefs call read_file path=secret; scopefs call bash command='cat secret fixed; echo x >secret; echo x >fixed; ln -s / out; mkdir -p .git/hooks; echo x >.git/hooks/pre-commit; echo x >free; echo x >mine; mv fixed away; ln fixed hard; ls -A'`
	for name, member := range map[string]struct{ members, def string }{
		"within":  {"members: [b]\n", "view: {paths: {mine: read}}"},
		"widened": {"members: {b: {may: widen}}\n", "view: {paths: {mine: read, secret: write}}"},
	} {
		t.Run(name, func(t *testing.T) {
			f := forking(t, map[string]string{"a": caller + member.members + "delegate: {changes: held}", "b": member.def}, plant...)
			text, id := f.answer(script)
			assert.NotContains(t, text, "SESAME")
			require.NotEmpty(t, id, text)
			list := f.a.Text("diff", args{"task": id})
			assert.Contains(t, list, "changed free")
			for _, not := range []string{"secret", "fixed", "mine", "hooks", "out", "away", "hard"} {
				assert.NotContains(t, list, not)
			}
			f.a.Call("commit", args{"task": id})
			assert.Equal(t, "x\n", harness.ReadAll(t, f.Scope("a", "free")))
			assert.Equal(t, "SESAME", harness.ReadAll(t, f.Scope("a", "secret")))
			assert.Equal(t, "1", harness.ReadAll(t, f.Scope("a", "fixed")))
			assert.Equal(t, "1", harness.ReadAll(t, f.Scope("a", "mine")))
			violation := false
			for _, e := range f.Events("b") {
				violation = violation || e.Event == audit.KindFile && e.Verdict != audit.Allow && e.Chain == "a>b"
			}
			assert.True(t, violation, "what the view refuses is the member's, for its caller")
		})
	}
	f := forking(t, map[string]string{"a": heldTasks, "b": "view: {access: read}"}, "f=1")
	text, id := f.answer(`scopefs call bash command='cat f; echo 2 >f' 2>&1`)
	assert.Contains(t, text, "Read-only")
	assert.Empty(t, id)
}

// TestDelegateHeldRulesOfNow: what a reload takes from the caller, the member does not have at once, and no commit brings.
func TestDelegateHeldRulesOfNow(t *testing.T) {
	for name, view := range map[string]string{"direct": "changes: direct", "kept": "changes: kept"} {
		t.Run(name, func(t *testing.T) {
			f := forking(t, map[string]string{"a": "view: {" + view + "}\n" + heldTasks, "b": ""}, "f=1", "late=1", "secret=SESAME")
			during := f.a.Begin(f.Soon(), "delegate", args{"member": "b", "task": `scopefs call bash command='echo 2 >f; until ! cat secret; do sleep 0.1; done; echo 2 >late; touch done'`})
			f.Eventually("the view of the task is there", func() bool { return len(f.left()) > 1 })
			f.Define("a", "view: {"+view+", paths: {secret: hide, late: read}}\n"+heldTasks)
			f.Must("reload")
			require.NoError(t, <-during)
			e := f.a.Fails("diff", args{"task": "x"})
			id := strings.TrimPrefix(e.Hint, "these have: ")
			list := f.a.Text("diff", args{"task": id})
			assert.Contains(t, list, "changed f")
			assert.NotContains(t, list, "late")

			f.Define("a", "view: {"+view+", paths: {f: read, done: hide}}\n"+heldTasks)
			f.Must("reload")
			assert.NotContains(t, f.a.Text("diff", args{"task": id}), "done")
			e = f.a.Fails("commit", args{"task": id})
			assert.Equal(t, tools.Conflict, e.Code)
			assert.Contains(t, e.Message, "f:")
			assert.NotContains(t, e.Message, "done")
			assert.Equal(t, "1", harness.ReadAll(t, f.Scope("a", "f")))
			f.Define("a", "view: {"+view+", access: read}\n"+heldTasks)
			f.Must("reload")
			assert.Equal(t, tools.Denied, f.a.Fails("commit", args{"task": id}).Code)
			f.a.Call("discard", args{"task": id})
			assert.Empty(t, f.left())
		})
	}
}

// TestDelegateHeldTasks: tasks have a branch each, which no other session and no member reaches. The second commit of a path
// conflicts.
func TestDelegateHeldTasks(t *testing.T) {
	f := forking(t, map[string]string{
		"a": heldTasks, "b": "view: {changes: held}\npolicy: {commit: allow}", "other": "members: [b]\ndelegate: {changes: held}"}, "f=0", "g=0")
	b := f.Connect("b")
	b.Bash("echo of b >own")
	text, first := f.answer(`scopefs call bash command='echo 1 >f; echo 1 >one'; scopefs call commit; scopefs call diff; scopefs call discard task=x; true`)
	assert.Contains(t, text, "works on a copy of the files of a, which commits its changes")
	assert.NotContains(t, text, "own")
	assert.NoFileExists(t, f.Scope("b", "own"), "its own changes wait")
	assert.Equal(t, "0", harness.ReadAll(t, f.Scope("a", "f")))
	text, second := f.answer(`scopefs call diff task=` + first + `; scopefs call commit task=` + first + `; scopefs call bash command='cat one; echo 2 >f; echo 2 >two'`)
	assert.Equal(t, 2, strings.Count(text, "no task"), text)
	assert.Contains(t, text, "one: No such file")
	for _, who := range []*harness.User{f.Connect("a"), f.Connect("other")} {
		for _, tool := range []string{"diff", "commit", "discard"} {
			assert.Equal(t, tools.NotFound, who.Fails(tool, args{"task": first}).Code, tool)
		}
	}
	for _, bad := range []string{"../task", "task-", first + "x", "a", strings.ToUpper(first)} {
		assert.Equal(t, tools.NotFound, f.a.Fails("diff", args{"task": bad}).Code, bad)
	}
	f.a.Call("commit", args{"task": first})
	e := f.a.Fails("commit", args{"task": second})
	assert.Equal(t, tools.Conflict, e.Code)
	assert.Contains(t, e.Message, "f:")
	assert.Equal(t, "1\n", harness.ReadAll(t, f.Scope("a", "f")))
	f.a.Call("commit", args{"task": second, "paths": []string{"two"}})
	assert.FileExists(t, f.Scope("a", "two"))
	f.a.Call("discard", args{"task": second})
	assert.Empty(t, f.left())
}

// TestDelegateHeldBounds: what is not committed goes with the session, with the oldest task of too many, and with the agent.
func TestDelegateHeldBounds(t *testing.T) {
	f := forking(t, map[string]string{"a": heldTasks, "b": ""}, "f=0")
	var ids []string
	for range 9 {
		id, _ := f.task("echo 1 >f")
		ids = append(ids, id)
	}
	assert.Equal(t, tools.NotFound, f.a.Fails("diff", args{"task": ids[0]}).Code)
	assert.Contains(t, f.steps(ids[0]), "a>b discard done")
	f.a.Call("diff", args{"task": ids[1]})
	assert.Len(t, f.left(), 8, "and no mount")

	e := f.a.Fails("delegate", args{"member": "b", "task": "scopefs call bash command='echo 2 >f'; exit 3"})
	assert.Contains(t, e.Message, "status 3")
	assert.Len(t, f.left(), 8, "a task that has failed leaves nothing")
	require.NoError(t, f.a.Session.Close())
	f.Eventually("the session has ended", func() bool { return len(f.left()) == 0 })
	f.Eventually("the log says so", func() bool { return len(f.steps(ids[8])) == 3 })
	assert.Equal(t, "0", harness.ReadAll(t, f.Scope("a", "f")))

	f.a = f.Connect("a")
	f.task("echo 1 >f")
	f.Must("down", "a")
	assert.Empty(t, f.left())
	f.Must("up", "a")

	f.a = f.Connect("a")
	last, _ := f.task("echo 1 >f")
	f.a.Begin(f.Soon(), "delegate", args{"member": "b", "task": "scopefs call bash command='echo 2 >f; sleep " + harness.Seconds(16) + "'"})
	m := &harness.Way{Host: f.Host}
	f.Eventually("it works", func() bool { return m.Sandboxed(harness.Seconds(16)) > 0 })
	f.Stop()
	assert.Empty(t, f.left(), "the daemon has ended")
	assert.Len(t, f.steps(last), 3)
	var dropped int
	for _, e := range f.Events("a") {
		if e.Op == "fork" {
			dropped++
		}
		if e.Op == "discard" {
			dropped--
		}
	}
	assert.Zero(t, dropped, "each branch is dropped once, and the log says so")
}

// TestDelegateHeldSideBySide: tasks at the same time have a branch each.
func TestDelegateHeldSideBySide(t *testing.T) {
	for name, view := range map[string]string{"direct": "", "kept": "view: {changes: kept}\n"} {
		t.Run(name, func(t *testing.T) {
			f := forking(t, map[string]string{"a": view + heldTasks, "b": ""}, "f=0")
			const count = 4
			type done struct {
				r   *mcp.CallToolResult
				err error
			}
			results := make(chan done, count)
			for i := range count {
				go func() { // each sees the file that it makes in its branch, and no other's
					r, err := f.a.Send(f.Soon(), "delegate", args{"member": "b", "task": fmt.Sprintf(
						"scopefs call bash command='echo %d >f; echo %d >own%d; sleep 0.5; cat f; ls'", i, i, i)})
					results <- done{r, err}
				}()
			}
			var all []done
			for range count { // all have forked before a commit changes what the others would see
				all = append(all, <-results)
			}
			taken := 0
			for _, d := range all {
				require.NoError(t, d.err)
				require.False(t, d.r.IsError, harness.Said(d.r))
				out, _ := d.r.StructuredContent.(map[string]any)
				assert.Equal(t, 1, strings.Count(out["answer"].(string), "own"), out["answer"])
				id := out["changes"].(map[string]any)["task"]
				r, err := f.a.Send(f.Soon(), "commit", args{"task": id})
				require.NoError(t, err)
				if !r.IsError {
					taken++
					continue
				}
				assert.Contains(t, harness.Said(r), "conflict")
				f.a.Call("commit", args{"task": id, "paths": []string{"own*"}})
			}
			assert.GreaterOrEqual(t, taken, 1)
			names, err := os.ReadDir(f.Scope("a"))
			require.NoError(t, err)
			assert.Len(t, names, count+1)
		})
	}
}

// TestDelegateHeldEnded: no process of the task changes its branch when the caller has the list.
func TestDelegateHeldEnded(t *testing.T) {
	f, word := forking(t, map[string]string{"a": heldTasks, "b": ""}, "f=0"), harness.Seconds(17)
	id, _ := f.task(`setsid -f sh -c "while :; do date +%N0` + word + ` >f; done"; (while :; do date +%N0` + word + ` >g; done) >/dev/null 2>&1 & until test -s f && test -s g; do :; done`)
	require.NotEmpty(t, id)
	before := f.a.Text("diff", args{"task": id})
	assert.Contains(t, before, "added g")
	assert.Equal(t, before, f.a.Text("diff", args{"task": id}))
	m := &harness.Way{Host: f.Host}
	assert.Zero(t, m.Sandboxed("date +%N0"+word))
	f.a.Call("commit", args{"task": id})
}

// TestDelegateHeldApproval: where the caller's policy asks, the operator approves the content, once.
func TestDelegateHeldApproval(t *testing.T) {
	for name, view := range map[string]string{"direct": "changes: direct", "kept": "changes: kept"} {
		t.Run(name, func(t *testing.T) {
			f := forking(t, map[string]string{"a": "view: {" + view + "}\npolicy: {commit: ask}\n" + heldTasks, "b": ""}, "f=0", "g=0")
			id, _ := f.task("echo 1 >f; echo 1 >g; mkdir src; echo 1 >src/x")
			approval := f.a.Waits("commit", args{"task": id, "paths": []string{"f"}})
			f.Must("approvals", "approve", approval)
			other := f.a.Waits("commit", args{"task": id, "paths": []string{"g"}})
			assert.NotEqual(t, approval, other, "it is for one call")
			f.a.Call("commit", args{"task": id, "paths": []string{"f"}})
			assert.Equal(t, "1\n", harness.ReadAll(t, f.Scope("a", "f")))
			assert.Equal(t, "0", harness.ReadAll(t, f.Scope("a", "g")))

			all := f.a.Waits("commit", args{"task": id})
			_, errs, code := f.Try("approvals", "approve", all, "--always")
			assert.Equal(t, 1, code)
			assert.Contains(t, errs, "approve it without terms")
			f.Must("approvals", "approve", all, "--allow-paths", "src/**")
			f.a.Call("commit", args{"task": id})
			assert.FileExists(t, f.Scope("a", "src/x"))
			assert.Equal(t, "0", harness.ReadAll(t, f.Scope("a", "g")))

			last := f.a.Waits("commit", args{"task": id})
			f.Must("approvals", "approve", last)
			harness.Plant(t, f.Scope("a"), "g=of the host")
			assert.Equal(t, tools.Conflict, f.a.Fails("commit", args{"task": id}).Code)
			assert.Equal(t, "of the host", harness.ReadAll(t, f.Scope("a", "g")))
		})
	}
}

// TestDelegateHeldChain: a member on a branch delegates to others, which work in their own files; a branch has no branches.
func TestDelegateHeldChain(t *testing.T) {
	f := forking(t, map[string]string{
		"a": heldTasks, "b": "members: [c]\ntools: ['*']", "c": "",
		"d": "members: [b2]\ndelegate: {changes: held}", "b2": "members: [c]\ntools: ['*']\ndelegate: {changes: held}"}, "f=SESAME")
	text, id := f.answer(`scopefs call write_file path=mine content=x >/dev/null; scopefs call delegate member=c task="scopefs call read_file path=f; scopefs call read_file path=mine; scopefs call write_file path=of-c content=x"`)
	assert.Equal(t, 2, strings.Count(text, "not_found"), text)
	assert.NotContains(t, text, "SESAME")
	assert.FileExists(t, f.Scope("c", "of-c"))
	assert.Contains(t, f.a.Text("diff", args{"task": id}), "added mine")

	d := f.Connect("d")
	out := d.Text("delegate", args{"member": "b2", "task": `scopefs call delegate member=c task=true; true`})
	assert.Contains(t, out, "works on a branch already")
	b2 := f.Connect("b2")
	b2.Call("delegate", args{"member": "c", "task": "scopefs call write_file path=x content=1"})
}

// TestDelegateHeldUndone: a commit through a view that fails half way leaves nothing.
func TestDelegateHeldUndone(t *testing.T) {
	f := forking(t, map[string]string{"a": "view: {changes: kept}\n" + heldTasks, "b": ""}, "f=0", "gone=1", "ro/")
	require.NoError(t, os.Chmod(f.Scope("a", "ro"), 0o555))
	id, _ := f.task("echo 1 >f; rm gone; mkdir new; mkfifo zz; chmod 755 ro; echo 1 >ro/new; chmod 555 ro")
	e := f.a.Fails("commit", args{"task": id})
	assert.Equal(t, "nothing was taken: zz is no file, directory or link", e.Message)
	f.a.Call("commit", args{"task": id, "paths": []string{"new"}})
	e = f.a.Fails("commit", args{"task": id, "paths": []string{"f", "gone", "ro/**"}})
	assert.True(t, strings.HasPrefix(e.Message, "nothing was taken: "), e.Message)
	assert.Equal(t, "ro/new", e.Path)
	assert.Equal(t, "0", harness.ReadAll(t, f.Scope("a", "f")))
	assert.FileExists(t, f.Scope("a", "gone"))
	f.a.Call("commit", args{"task": id, "paths": []string{"f"}})
	assert.Equal(t, "1\n", harness.ReadAll(t, f.Scope("a", "f")))
}

// TestDelegateHeldKilled: a daemon that is killed leaves branches. The next one removes them.
func TestDelegateHeldKilled(t *testing.T) {
	f := forking(t, map[string]string{"a": heldTasks, "b": ""}, "f=0")
	id, _ := f.task("echo 1 >f")
	f.a.Begin(f.Soon(), "delegate", args{"member": "b", "task": "scopefs call bash command='echo 2 >f; sleep " + harness.Seconds(15) + "'"})
	m := &harness.Way{Host: f.Host}
	f.Eventually("it works", func() bool { return m.Sandboxed(harness.Seconds(15)) > 0 })
	f.Kill()
	assert.NotEmpty(t, f.left())
	forged := f.Base + "/history/task-" + strings.Repeat("a", 26) // the caller's user has the directories of its tasks
	require.NoError(t, os.Mkdir(forged, 0o700))
	require.NoError(t, unix.Mkfifo(forged+"/task", 0o600))
	f.Start()
	f.Eventually("nothing is left", func() bool { return len(f.left()) == 0 })
	f.Eventually("the next daemon discards it", func() bool { return slices.Contains(f.steps(id), "a>b discard done") })
	assert.Equal(t, "0", harness.ReadAll(t, f.Scope("a", "f")))
}

// TestDelegateHeldLoad: definitions that cannot be.
func TestDelegateHeldLoad(t *testing.T) {
	f := forking(t, map[string]string{"a": heldTasks, "b": "", "c": ""})
	for front, want := range map[string]string{
		"view: {changes: held}\n" + heldTasks:           "a branch has no branches: write view: {changes: kept}, or delegate: {changes: direct}",
		"identity: caller\n" + heldTasks:                "delegate: changes: held needs identity: agent",
		"delegate: {changes: kept}":                     "want one of [direct held]",
		"delegate: {changes: direct}\ntools: [discard]": "discard needs tasks whose changes are held: write delegate: {changes: held}",
		"branch: a": "its agent has delegate: {changes: held}, and a branch has no branches",
	} {
		f.Define("x", front)
		_, errs, _ := f.Try("reload")
		assert.Contains(t, errs, want)
	}
	list := f.a.List()
	for _, tool := range []string{"diff", "commit", "discard", "delegate"} {
		assert.Contains(t, list, tool)
	}
	assert.NotContains(t, f.Connect("c").List(), "discard")
}

// TestDelegateHeldUsers: the member works as the caller's user, with no HOME of either, and its limits; its runner is the
// member's user. The history of the caller may be elsewhere.
func TestDelegateHeldUsers(t *testing.T) {
	for name, view := range map[string]string{"direct": "direct", "kept": "kept"} {
		t.Run(name, func(t *testing.T) {
			elsewhere, err := os.MkdirTemp("", "scopefs-history-")
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, os.RemoveAll(elsewhere)) })
			require.NoError(t, os.Chmod(elsewhere, 0o711))
			f := forking(t, map[string]string{
				"a": "user: '4321'\nview: {changes: " + view + ", record: writes}\nhistory: {dir: " + elsewhere + "}\n" + heldTasks,
				"b": "user: '4322'\nlimits: {pids: 77}\nenv: {OF_B: yes}"})
			require.NoError(t, os.Chown(f.Scope("a"), 4321, 4321))
			f.a.Bash("echo 1 >f; mkdir -p box; echo 1 >box/x; echo of a >~/mine")
			text, id := f.answer(`id -u; scopefs call bash command='id -u; ls -A ~; echo $OF_B; echo 2 >f; mv box tree; stat -c %u f tree; ls /tmp/*/history /tmp/*/*/history /tmp/scopefs-history-* /tmp/*/scopefs-history-*'`)
			assert.Contains(t, text, "4322\n4321\nyes\n4321\n4321\n")
			assert.Contains(t, text, "No such file")
			f.a.Call("commit", args{"task": id})
			assert.Equal(t, "2\n", harness.ReadAll(t, f.Scope("a", "f")))
			assert.FileExists(t, f.Scope("a", "tree/x"))
			f.a.Bash("echo 3 >f")
			left, err := os.ReadDir(elsewhere)
			require.NoError(t, err)
			for _, e := range left {
				assert.Equal(t, "a", e.Name())
			}
			wrote, mounted := false, false
			for _, e := range f.Events("b") {
				wrote = wrote || e.Event == audit.KindFile && e.Path == "f" && e.Chain == "a>b"
				mounted = mounted || e.Event == audit.KindView && strings.HasPrefix(e.Detail, "task "+id) && e.Chain == "a>b"
			}
			assert.True(t, wrote)
			assert.True(t, mounted)
			for _, e := range f.Events(id) {
				assert.Fail(t, "an event of no agent", "%s", e.Raw)
			}
		})
	}
}

// TestDelegateHeldInterrupted: a commit during which the daemon is killed is done as a whole, or not at all.
func TestDelegateHeldInterrupted(t *testing.T) {
	f := forking(t, map[string]string{"a": heldTasks, "b": ""})
	const files = 400
	for try, unfinished := 0, false; try < 10 && !unfinished; try++ {
		dir := fmt.Sprint("d", try)
		id, _ := f.task(fmt.Sprintf("mkdir %s; cd %s; for i in $(seq %d); do echo 1 >f$i; done", dir, dir, files))
		f.a.Begin(f.Soon(), "commit", args{"task": id})
		intent := f.Base + "/history/" + id + "/intent"
		f.Eventually("it is under way, or done", func() bool {
			if _, err := os.Stat(intent); err == nil {
				return true
			}
			_, err := os.Stat(f.Base + "/history/" + id)
			return err != nil
		})
		f.Kill()
		_, err := os.Stat(intent)
		f.Start()
		assert.Empty(t, f.left())
		made, _ := os.ReadDir(f.Scope("a", dir))
		assert.Contains(t, []int{0, files}, len(made))
		unfinished = err == nil && len(made) == files // none: the plan was not complete
		t.Log(try, unfinished)
		f.a = f.Connect("a")
	}
}

// TestDelegateHeldAlone: without a daemon, also as an ordinary user.
func TestDelegateHeldAlone(t *testing.T) {
	for name, c := range map[string]struct {
		user int
		view string
	}{"root": {0, "direct"}, "user": {4321, "direct"}, "user, kept": {4321, "kept"}} {
		t.Run(name, func(t *testing.T) {
			m := harness.Embed(t, c.user, map[string]string{"a": "view: {changes: " + c.view + "}\n" + heldTasks, "b": ""})
			m.Scripted("")
			cmd := m.Command("mcp", "--agent", "a")
			cmd.Stderr = os.Stderr
			u := m.Attach(nil, cmd, &mcp.CommandTransport{Command: cmd, TerminateDuration: 15 * time.Second})
			f := &forker{m.Host, u}
			u.Bash("echo 1 >f; mkdir d; echo 1 >d/x; echo 1 >gone")
			id, _ := f.task("echo 2 >f; rm gone; echo 2 >d/x; echo 1 >new")
			assert.Equal(t, "1\n", harness.ReadAll(t, f.Scope("a", "f")))
			assert.Contains(t, u.Text("diff", args{"task": id}), "changed d/x")
			assert.EqualValues(t, 4, u.Call("commit", args{"task": id})["done"])
			assert.Equal(t, "2\n", harness.ReadAll(t, f.Scope("a", "f")))
			assert.NoFileExists(t, f.Scope("a", "gone"))
			f.task("echo 3 >f; mkdir -p ro/in; touch ro/in/x; chmod 500 ro/in ro")
			require.NoError(t, u.Session.Close())
			f.Eventually("nothing is left", func() bool { return len(f.left()) == 0 })
			assert.Equal(t, "2\n", harness.ReadAll(t, f.Scope("a", "f")))
		})
	}
}

// TestDelegateHeldStopped: the agent's user stops the process that answers about a task. The call ends, and so does the discard.
func TestDelegateHeldStopped(t *testing.T) {
	f := forking(t, map[string]string{"a": heldTasks, "b": ""}, "f=1")
	id, _ := f.task("echo 2 >f; mkdir d; for i in $(seq 1500); do echo >d/$i; done") // so that the process lives long enough to be seen
	known := harness.ChildrenOf(f.Cmd.Process.Pid, "scopefs-view")
	stopped, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			_, _ = f.a.Send(f.Soon(), "diff", args{"task": id})
			select {
			case <-stopped:
				return
			default:
			}
		}
	}()
	f.Eventually("a process answers, and is stopped", func() bool {
		return slices.ContainsFunc(harness.ChildrenOf(f.Cmd.Process.Pid, "scopefs-view"), func(pid int) bool {
			return !slices.Contains(known, pid) && unix.Kill(pid, unix.SIGSTOP) == nil
		})
	})
	close(stopped)
	select {
	case <-ended:
	case <-time.After(f.Timeout / 2):
		require.Fail(t, "the call did not end")
	}
	f.a.Call("discard", args{"task": id})
	assert.Empty(t, f.left())
	assert.Equal(t, "1", harness.ReadAll(t, f.Scope("a", "f")))
}
