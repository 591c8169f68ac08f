package tools

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	control "github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
)

// holder is a host, and a client of its control API.
type holder struct {
	*harness.Host
	client *control.Client
}

func holding(t *testing.T, agents map[string]string) *holder {
	h := harness.LayOut(t, agents)
	h.Start()
	return &holder{h, control.NewClient(config.Paths{Base: h.Base, State: h.Base + "/state", Run: h.Base + "/run"})}
}

// plant makes files in the directory of an agent, whose branch begins with them.
func (k *holder) plant(id string, lines ...string) {
	k.T.Helper()
	harness.Plant(k.T, k.Scope(id), lines...)
	k.Must("down", id)
	k.Must("up", id)
}

// held returns lines "KIND PATH" of what differs.
func (k *holder) held(id scope.ID) (lines []string) {
	k.T.Helper()
	d, err := k.client.HistoryOf(id).Diff(k.T.Context(), nil, false)
	require.NoError(k.T, err)
	for _, c := range d.List {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s", c.Kind, c.Path, c.Conflict)))
	}
	return lines
}

const heldAsk = "view: {changes: held}\npolicy: {commit: ask}"

// TestCommitAsk: the operator approves what the diff shows, and a commit takes that and nothing else.
func TestCommitAsk(t *testing.T) {
	k := holding(t, map[string]string{"a": heldAsk, "b": "view: {changes: held}\npolicy: {commit: allow}", "c": "view: {changes: held}"})
	dir := k.Scope("a")
	k.plant("a", "f=one\n", "gone=1\n", "src/a=1\n")
	u := k.Connect("a")
	assert.Equal(t, tools.NotFound, u.Fails("commit", nil).Code, "nothing differs")
	u.Bash("echo two >f; rm gone; echo 2 >src/a; ln -s f link; echo new >src/b; chmod 755 src/b")
	assert.Contains(t, u.Text("diff", nil), "-one\n+two\n")
	assert.NotContains(t, u.Text("diff", args{"paths": []string{"/workspace/src"}}), "two")

	// Denied.
	id := u.Waits("commit", args{"message": "the first"})
	assert.Equal(t, id, u.Waits("commit", args{"message": "the first"}))
	k.Must("approvals", "deny", id)
	assert.Equal(t, tools.Denied, u.Fails("commit", args{"message": "the first"}).Code)
	assert.Equal(t, "one\n", harness.ReadAll(t, dir+"/f"))

	// Approved: by what the operator sees.
	id = u.Waits("commit", nil)
	var shown approvals.Approval
	require.NoError(t, json.Unmarshal([]byte(k.Must("approvals", "show", id)), &shown))
	require.NotNil(t, shown.Changes)
	assert.Equal(t, "5 changes: 1 removed, 2 changed, 2 added", shown.Changes.Note)
	assert.Equal(t, "removed gone\nadded link, a link to f\nadded src/b, mode 0755, 4 bytes\nchanged f, 4 bytes\nchanged src/a, 2 bytes\n",
		shown.Changes.Diff[:strings.Index(shown.Changes.Diff, "---")])
	assert.Contains(t, shown.Changes.Diff, "-one\n+two\n")
	d, err := k.client.HistoryOf("a").Diff(t.Context(), nil, true)
	require.NoError(t, err)
	assert.Equal(t, d.Hash, shown.Content)
	for _, terms := range [][]string{{"--always"}, {"--session"}, {"--pattern", "**", "--always"}} {
		_, errs, code := k.Try(append([]string{"approvals", "approve", id}, terms...)...)
		assert.Equal(t, 1, code)
		assert.Contains(t, errs, "approve it without terms")
	}
	k.Must("approvals", "approve", id)
	u.Waits("commit", args{"paths": []string{"f"}}) // another set
	u.Waits("commit", args{"message": "other"})     // another call
	out := k.Connect("a").Call("commit", nil)       // any session of the agent
	assert.Equal(t, tools.NotFound, u.Fails("commit", nil).Code, "it is used up")
	assert.EqualValues(t, 5, out["done"])
	assert.Equal(t, "two\n", harness.ReadAll(t, dir+"/f"))
	assert.NoFileExists(t, dir+"/gone")
	var done []audit.Event
	for _, e := range k.Events("a") {
		if e.Event == audit.KindHistory && e.Op == "commit" && e.Outcome == "done" {
			done = append(done, e)
		}
	}
	require.Len(t, done, 1)
	assert.Equal(t, k.Last("a", "commit").Op, done[0].Op)
	assert.NotEmpty(t, done[0].Session)
	assert.NotEmpty(t, done[0].Call)
	assert.Nil(t, done[0].UID)
	assert.Contains(t, done[0].Detail, "5 steps, 0 conflicts")

	// Without ask, and not at all.
	b, c := k.Connect("b"), k.Connect("c")
	b.Bash("echo b >b")
	b.Call("commit", nil)
	assert.Equal(t, "b\n", harness.ReadAll(t, k.Scope("b", "b")))
	assert.NotContains(t, c.List(), "commit")
	assert.Contains(t, c.List(), "diff")
	assert.Equal(t, tools.Denied, c.Fails("commit", nil).Code)
}

// TestCommitChanged: what changes between the approval and the commit is not committed, however it changes.
func TestCommitChanged(t *testing.T) {
	k := holding(t, map[string]string{"a": heldAsk})
	dir, view := k.Scope("a"), k.View("a")
	k.plant("a", "f=base", "other=1")
	u := k.Connect("a")
	u.Bash("printf good >f; printf two >other; ln -s f link")
	file, err := os.OpenFile(view+"/f", os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	memory, err := unix.Mmap(int(file.Fd()), 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { _ = unix.Munmap(memory) }()
	copy(memory, "good") // the page is writable now
	before := k.held("a")
	for name, change := range map[string]func(){
		"mapping": func() { copy(memory, "evil") },
		"mode":    func() { u.Bash("chmod 4755 f") },
		"link":    func() { u.Bash("ln -sfn evil link") },
		"added":   func() { u.Bash("echo evil >new") },
		"fewer":   func() { u.Bash("printf 1 >other") },
	} {
		copy(memory, "good")
		u.Bash("chmod 644 f; ln -sfn f link; rm -f new; printf two >other")
		require.Equal(t, before, k.held("a"))
		id := u.Waits("commit", args{"message": name})
		k.Must("approvals", "approve", id)
		change()
		assert.NotEqual(t, id, u.Waits("commit", args{"message": name}), name)
		assert.Equal(t, "base", harness.ReadAll(t, dir+"/f"), name)
		k.Must("approvals", "revoke", id)
	}
	id := u.Waits("commit", args{"message": "host"})
	k.Must("approvals", "approve", id)
	harness.Plant(t, dir, "other=of the host")
	assert.Equal(t, tools.Conflict, u.Fails("commit", args{"message": "host"}).Code)
	assert.Equal(t, "of the host", harness.ReadAll(t, dir+"/other"))
	assert.Equal(t, "base", harness.ReadAll(t, dir+"/f"))
	u.Waits("commit", args{"paths": []string{"f"}}) // the rest can be committed
}

// TestCommitRace: a client that changes a file back and forth, by a mapping, while calls run gets nothing committed but what
// was approved.
func TestCommitRace(t *testing.T) {
	k := holding(t, map[string]string{"a": heldAsk})
	dir := k.Scope("a")
	k.plant("a", "f=base")
	u := k.Connect("a")
	u.Bash("printf good >f; mkdir d; cd d; seq 1 200 | split -l 1 - x")
	id := u.Waits("commit", nil)
	file, err := os.OpenFile(k.View("a", "f"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	memory, err := unix.Mmap(int(file.Fd()), 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(i%7) * time.Millisecond):
				copy(memory, []string{"good", "evil"}[i%2])
			}
		}
	}()
	k.Must("approvals", "approve", id)
	results := map[string]int{}
	for range 30 {
		r, err := u.Send(k.Soon(), "commit", nil)
		require.NoError(t, err)
		if !r.IsError {
			results["done"]++
			break
		}
		for _, code := range []tools.Code{tools.ApprovalRequired, tools.Conflict} {
			if strings.Contains(harness.Said(r), string(code)) {
				results[string(code)]++
			}
		}
	}
	close(stop)
	<-stopped
	require.NoError(t, unix.Munmap(memory))
	t.Log(results)
	assert.Contains(t, []string{"base", "good"}, harness.ReadAll(t, dir+"/f"))
}

// TestCommitPart: the operator approves a part of what is shown.
func TestCommitPart(t *testing.T) {
	k := holding(t, map[string]string{"a": heldAsk})
	u := k.Connect("a")
	u.Bash("mkdir -p src/d; echo 1 >src/d/f; echo 2 >out")
	id := u.Waits("commit", nil)
	_, errs, code := k.Try("approvals", "approve", id, "--allow-paths", "../x")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "--allow-paths")
	k.Must("approvals", "approve", id, "--allow-paths", "src/**")
	u.Bash("echo evil >src/d/f")
	again := u.Waits("commit", nil)
	assert.NotEqual(t, id, again)
	u.Bash("echo 1 >src/d/f; echo evil >out")
	assert.NotEqual(t, id, u.Waits("commit", nil), "what is left out counts as well")
	u.Bash("echo 2 >out")
	assert.EqualValues(t, 3, u.Call("commit", nil)["done"])
	assert.Equal(t, "1\n", harness.ReadAll(t, k.Scope("a", "src/d/f")))
	assert.NoFileExists(t, k.Scope("a", "out"))
	assert.Equal(t, []string{"added out"}, k.held("a"))
}

// TestCommitRules: paths outside, what the rules hide or do not let the agent change, and definitions that do not load.
func TestCommitRules(t *testing.T) {
	k := holding(t, map[string]string{"a": heldAsk, "b": "view: {changes: held}\npolicy: {commit: allow}"})
	k.plant("a", "secret=SECRET\n", "f=1\n")
	u, b := k.Connect("a"), k.Connect("b")
	for _, path := range []string{"../b", "/etc/**", "..", "x/../../y"} {
		assert.Equal(t, tools.OutsideScope, u.Fails("commit", args{"paths": []string{path}}).Code, path)
		assert.Equal(t, audit.Violation, k.Last("a", "commit").Verdict, path)
		assert.Equal(t, tools.OutsideScope, u.Fails("diff", args{"paths": []string{path}}).Code, path)
	}
	assert.Equal(t, tools.Invalid, u.Fails("diff", args{"paths": []string{"[x"}}).Code)
	u.Bash("echo more >>secret; echo 2 >f")
	b.Bash("echo 1 >fixed; echo 1 >free")
	id := u.Waits("commit", nil)
	k.Must("approvals", "approve", id)
	k.Define("a", "view: {changes: held, paths: {secret: hide}}\npolicy: {commit: ask}")
	k.Define("b", "view: {changes: held, paths: {fixed: read}}\npolicy: {commit: allow}")
	k.Must("reload")
	text := u.Text("diff", nil)
	assert.NotContains(t, text, "secret")
	assert.NotContains(t, text, "SECRET")
	assert.NotEqual(t, id, u.Waits("commit", nil), "other rules")
	e := b.Fails("commit", nil)
	assert.Equal(t, tools.Conflict, e.Code)
	assert.Contains(t, e.Message, "fixed")
	assert.NoFileExists(t, k.Scope("b", "free"))
	b.Call("commit", args{"paths": []string{"free"}})
	assert.FileExists(t, k.Scope("b", "free"))

	for front, want := range map[string]string{
		"policy: {commit: ask}":                                       "policy.commit: ask needs changes that are held: write view: {changes: held}, or remove it",
		"view: {changes: kept}\ntools: [diff]":                        "tools: diff needs changes that are held",
		"view: {changes: held}\ntools: [commit]":                      "tools: commit needs the operator's word: write policy: {commit: ask}",
		"view: {changes: held}\npolicy: {commit: sometimes}":          "want one of [ask allow]",
		"view: {changes: direct}\npolicy: {tools: {allowed: [undo]}}": "undo needs the history",
	} {
		k.Define("x", front)
		_, errs, _ := k.Try("reload")
		assert.Contains(t, errs, want)
	}
}

// TestCommitLarge: the text of a large set of changes is bounded, and shows removals, modes and changes whatever else there is.
// SCOPEFS_TEST_COMMIT_FILES is the number of files.
func TestCommitLarge(t *testing.T) {
	files := 5000
	if text := os.Getenv("SCOPEFS_TEST_COMMIT_FILES"); text != "" {
		var err error
		files, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	k := holding(t, map[string]string{"a": heldAsk})
	k.plant("a", "zzz=1\n", "zzf=one\n")
	u := k.Connect("a")
	u.Bash(fmt.Sprintf("mkdir aaa; cd aaa; seq 1 %d | split -l 1 -a 4 - f", files))
	u.Bash("rm zzz; echo x >zzrun; chmod 755 zzrun; echo two >zzf")
	began := time.Now()
	id := u.Waits("commit", nil)
	t.Logf("%d files: the approval took %v", files, time.Since(began))
	var shown approvals.Approval
	require.NoError(t, json.Unmarshal([]byte(k.Must("approvals", "show", id)), &shown))
	assert.LessOrEqual(t, len(shown.Changes.Diff), 80<<10)
	assert.True(t, strings.HasPrefix(shown.Changes.Diff, "added zzrun, mode 0755, 2 bytes, no diff\nremoved zzz\n"), shown.Changes.Diff[:100])
	assert.Contains(t, shown.Changes.Diff, "-one\n+two\n")
	note := fmt.Sprintf(`^%d changes: 1 removed, 1 changed, %d added; \d+ are not listed; \d+ have no diff$`, files+4, files+2)
	assert.Regexp(t, note, shown.Changes.Note)

	// A flood of calls does not keep the operator from the branch.
	results := make(chan error, 40)
	flood := k.Connect("a")
	for i := range cap(results) {
		go func() {
			_, err := flood.Send(k.Soon(), "commit", args{"message": fmt.Sprint(i), "paths": []string{"zz*"}})
			results <- err
		}()
	}
	began = time.Now()
	assert.Len(t, k.held("a"), files+4)
	t.Logf("the operator's diff took %v in a flood of calls", time.Since(began))
	for range cap(results) {
		require.NoError(t, <-results)
	}
	k.Must("approvals", "approve", id)
	began = time.Now()
	assert.EqualValues(t, files+4, u.Call("commit", nil)["done"])
	t.Logf("the commit took %v", time.Since(began))
	assert.NoFileExists(t, k.Scope("a", "zzz"))
}
