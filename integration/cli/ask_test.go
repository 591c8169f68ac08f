package cli

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// person answers what waits for the operator, until the test ends or quiet is called. It returns the questions, as scopefs approvals
// lists them.
func person(t *testing.T, h *harness.Host, word string, more ...string) (quiet func() []string) {
	t.Helper()
	stop, ended := make(chan struct{}), make(chan []string, 1)
	go func() {
		var asked []string
		for {
			select {
			case <-stop:
				ended <- asked
				return
			case <-time.After(50 * time.Millisecond):
			}
			list, _, _ := h.Try("approvals")
			for line := range strings.Lines(list) {
				if strings.Contains(line, " waits ") {
					asked = append(asked, strings.TrimSpace(line))
					_, _, _ = h.Try(append([]string{"approvals", word, strings.Fields(line)[0]}, more...)...)
				}
			}
		}
	}()
	return func() []string {
		close(stop)
		return <-ended
	}
}

// waits returns the id of what waits, once there is one.
func waits(h *harness.Host, about string) (id string) {
	h.Eventually(about+" waits", func() bool {
		list, _, _ := h.Try("approvals")
		for line := range strings.Lines(list) {
			if strings.Contains(line, " waits ") && strings.Contains(line, about) {
				id = strings.Fields(line)[0]
			}
		}
		return id != ""
	})
	return id
}

// TestAskPath: an open of a path under ask waits for the operator, who grants what was asked for; what holds a lock of the kernel fails
// and asks; names and attributes are there.
func TestAskPath(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {paths: {'docs/**': ask, docs/key: hide}}"})
	harness.Plant(t, h.Scope("a"), "docs/a=one\n", "docs/b=two\n", "docs/key=k\n", "free=f\n")
	assert.Equal(t, "a\nb\nf\n", h.Must("run", "a", "--", "sh", "-c", "ls docs; stat -c %s docs/a >/dev/null && cat free"))
	out, stderr, _ := h.Try("run", "a", "--", "cat", "docs/key")
	assert.Contains(t, stderr, "No such file", out)
	assert.NotContains(t, h.Must("approvals"), "waits", "a hidden name asks nothing")

	got := make(chan string, 1)
	go func() {
		out, _, _ := h.Try("run", "a", "--", "sh", "-c", "cat docs/a; cat free; cat docs/a; echo x >>docs/a || echo no; rm docs/a || echo no")
		got <- out
	}()
	h.Must("approvals", "approve", waits(h, "files:read"))
	h.Must("approvals", "deny", waits(h, "files:write"))
	assert.Equal(t, "one\nf\none\nno\nno\n", <-got, "one question to read, one to write")
	assert.Equal(t, "one\n", h.Must("run", "a", "--", "cat", "docs/a"), "it holds for other commands")
	assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindApproval, Op: "files:read", Outcome: "asked", Rule: "docs/**: ask"}))
	assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindFile, Op: "open-write", Path: "docs/a", Verdict: audit.Deny, Rule: "docs/**: ask"}))

	out, stderr, _ = h.Try("run", "a", "--", "sh", "-c", "touch docs/new 2>/dev/null || echo asks")
	assert.Equal(t, "asks\n", out, "a create holds the directory's lock")
	id := waits(h, "docs/new")
	assert.Contains(t, stderr, "files of a: it changes docs/new, which needs an approval (docs/**: ask): scopefs approvals approve "+id)
	h.Must("approvals", "approve", id)
	assert.Equal(t, "", h.Must("run", "a", "--", "touch", "docs/new"))
	assert.FileExists(t, h.Scope("a")+"/docs/new")

	// A directory until it is revoked.
	go func() {
		out, _, _ := h.Try("run", "a", "--", "sh", "-c", "cat docs/b docs/b")
		got <- out
	}()
	h.Must("approvals", "approve", waits(h, "docs/b"), "--pattern", "docs/**", "--always")
	assert.Equal(t, "two\ntwo\n", <-got)
	harness.Plant(t, h.Scope("a"), "docs/c=three\n")
	assert.Equal(t, "three\n", h.Must("run", "a", "--", "cat", "docs/c"))
	for line := range strings.Lines(h.Must("approvals")) {
		if strings.Contains(line, "docs/**") {
			h.Must("approvals", "revoke", strings.Fields(line)[0])
		}
	}
	h.Eventually("the grant has ended", func() bool {
		_, _, code := h.Try("run", "a", "--", "timeout", "0.2", "cat", "docs/c")
		return code != 0
	})
}

// TestAskInterrupted: who waits for the operator can be killed, delays nobody, and does not make the view look stuck; more than four
// do not wait.
func TestAskInterrupted(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {paths: {'docs/**': ask}}"})
	var files []string
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		files = append(files, "docs/"+name+"=x\n")
	}
	harness.Plant(t, h.Scope("a"), append(files, "free=f\n")...)
	h.Must("run", "a", "--", "true")
	pid := h.ViewPID("a")
	script := `for f in a b c d; do cat docs/$f & done; sleep 4
		timeout 1 cat docs/e 2>&1; touch free; echo made >docs/../new; ls docs; kill -9 $(jobs -p); wait; echo over`
	began := time.Now()
	out, stderr, _ := h.Try("run", "a", "--", "bash", "-c", script)
	assert.Equal(t, "cat: docs/e: Permission denied\na\nb\nc\nd\ne\nover\n", out, stderr)
	assert.Less(t, time.Since(began), 30*time.Second)
	assert.Equal(t, pid, h.ViewPID("a"), "the view goes on")
}

// TestAskRoot: a root with ask is there from the start, closed. The first walk through it waits, whatever the operation is, and what it
// has shows nothing before.
func TestAskRoot(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	tree(t, top, 0)
	front := "dir: " + top + "/proj\nview: {changes: kept, paths: {.env: seal}, roots: [{dir: " + top + "/lib, access: ask}]}"
	h := harness.NewHost(t, map[string]string{"a": front})
	run := func(script string) <-chan string {
		got := make(chan string, 1)
		go func() {
			out, stderr, _ := h.Try("run", "a", "-q", "--", "sh", "-c", script)
			got <- out + stderr
		}()
		return got
	}
	assert.Equal(t, "lib\nproj\nmine\n", <-run("ls ..; cat a"), "nothing asks")
	for _, script := range []string{"cat ../lib/b", "stat -c %n ../lib/b", "cat ../lib/nothing", "touch ../lib/made", "mkdir ../lib/dir", "rm ../lib/b",
		"mv ../lib/b ../lib/c", "ls ../lib", "cd ../lib", "stat ../lib", "ln -s x ../lib/l", "cat ../lib/.env", "find ../lib"} {
		got := run(script)
		h.Must("approvals", "deny", waits(h, "files:open"))
		out := <-got
		assert.Regexp(t, "Permission denied|can't cd to", out, script)
		h.Must("down", "a") // the decision would hold
	}
	got := run("cat ../lib/b; mkdir -p ../lib/dir; echo x >../lib/dir/x; cat ../lib/.env; ls ../lib")
	id := waits(h, "files:open")
	assert.Contains(t, h.Must("approvals", "show", id), top+"/lib")
	h.Must("approvals", "approve", id)
	out := <-got
	assert.Contains(t, out, "theirs\n", "one question for all")
	assert.Contains(t, out, "../lib/.env: Permission denied", "what else the rules say")
	assert.FileExists(t, top+"/lib/dir/x")
	assert.Equal(t, "theirs\n", <-run("cat ../lib/b"))

	// What was open does not outlast the approval.
	marker := top + "/proj/go"
	got = run(`cd ../lib; cat b; touch ../proj/ready; for i in $(seq 200); do [ -e "$OLDPWD/go" ] && break; sleep 0.1; done; cat b; ls; touch x; cat dir/x`)
	h.Eventually("it is in the root", func() bool { _, err := os.Stat(top + "/proj/ready"); return err == nil })
	h.Must("approvals", "revoke", id)
	quiet := person(t, h, "deny")
	require.NoError(t, os.WriteFile(marker, nil, 0o644))
	out = <-got
	quiet()
	assert.Equal(t, 1, strings.Count(out, "theirs"), out)
	assert.NotContains(t, out, "\nx\n", out)
	assert.NoFileExists(t, top+"/lib/x")
}

// TestAskRootFiles: file tools wait at a root with ask as commands do, and what they answer before the operator opens it says nothing of
// what is in it.
func TestAskRootFiles(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	tree(t, top, 0)
	h := harness.NewHost(t, map[string]string{
		"a": "dir: " + top + "/proj\nview: {paths: {.env: hide}, roots: [{dir: " + top + "/lib, access: ask}]}"})
	call := func(words ...string) <-chan string {
		got := make(chan string, 1)
		go func() {
			out, stderr, _ := h.Try(append([]string{"call", "--agent", "a"}, words...)...)
			got <- out + stderr
		}()
		return got
	}
	for _, tool := range []string{"read_file", "stat", "list_dir"} {
		said := map[string]string{}
		for _, name := range []string{"b", "nothing", ".env"} {
			got := call(tool, "path=../lib/"+name)
			h.Must("approvals", "deny", waits(h, "files:open"))
			said[name] = strings.ReplaceAll(<-got, "/lib/"+name, "/lib/NAME")
			h.Must("down", "a") // the decision would hold
			h.Must("up", "a")
		}
		assert.NotContains(t, said["b"], "theirs")
		assert.Equal(t, said["b"], said["nothing"], tool)
		assert.Equal(t, said["b"], said[".env"], tool)
	}
	got := call("read_file", "path=../lib/b")
	h.Must("approvals", "approve", waits(h, "files:open"))
	assert.Contains(t, <-got, "theirs\n")
	assert.Contains(t, <-call("read_file", "path="+top+"/lib/.env"), "no such file or directory")
}

// TestAttackAsk: no other name of a path under ask leads around the question, a question is no oracle, and none of what an approval does
// not name is granted.
func TestAttackAsk(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	tree(t, top, 0)
	h := harness.NewHost(t, map[string]string{"a": "dir: " + top + "/proj\nview: {paths: {'docs/**': ask, '**/key': hide}, roots: [{dir: " + top + "/lib, access: ask}]}"})
	harness.Plant(t, top, "proj/docs/a=one\n", "proj/docs/b=two\n", "proj/docs/key=k\n", "proj/in/x=x\n", "lib/key=k\n", "lib/docs/c=three\n")
	require.NoError(t, os.Symlink("docs/a", top+"/proj/link"))
	require.NoError(t, os.Link(top+"/proj/docs/b", top+"/proj/other"))
	script := func(text string) string {
		out, _, _ := h.Try("run", "a", "-q", "--", "bash", "-c", "exec 2>&1; "+text)
		return out
	}
	deny := person(t, h, "deny")
	for _, text := range []string{
		"cat link", "cat docs/../docs/a", "ln docs/a y; cat y", "mv docs/a y; cat y", "mv docs y; cat y/a", "cp -l docs/a y; cat y", "exec 3<docs/a; cat <&3",
		"python3 -c 'import os; f=os.open(\"docs/a\", os.O_PATH); print(open(\"/proc/self/fd/%d\" % f).read())'", "truncate -s 0 docs/a; cat docs/a",
		"ln -s docs d; cat d/a", "cd docs && cat a", "mkdir -p q/docs && mv docs/a q/docs/a; cat q/docs/a", "cat other; stat docs/b >/dev/null; cat other",
	} {
		out := script(text)
		assert.NotContains(t, out, "one", text)
		h.Must("down", "a")
	}
	for name, want := range map[string]string{"docs/a": "one\n", "docs/b": "two\n", "lib/b": "theirs\n"} {
		at := top + "/proj/" + name
		if strings.HasPrefix(name, "lib/") {
			at = top + "/" + name
		}
		text, err := os.ReadFile(at)
		require.NoError(t, err)
		assert.Equal(t, want, string(text))
	}
	// What a closed root has, and what it hides, cannot be told apart from what it does not have.
	said := map[string]bool{}
	for _, name := range []string{"b", "key", "nothing", "docs/c", "docs/nothing"} {
		out := script("cat ../lib/" + name + "; stat ../lib/" + name + "; mkdir ../lib/" + name + "; ls ../lib/" + name + "/x")
		said[strings.ReplaceAll(out, "../lib/"+name, "NAME")] = true
		h.Must("down", "a")
	}
	assert.Len(t, said, 1, "%v", said)
	for _, line := range deny() {
		assert.NotContains(t, line, "key")
	}

	// A yes to the root is none to what a rule asks about in it, nor to what is hidden; one to a path is none to another.
	got := make(chan string, 1)
	go func() { got <- script("cat ../lib/b ../lib/key; cat ../lib/docs/c") }()
	h.Must("approvals", "approve", waits(h, "files:open"))
	h.Must("approvals", "deny", waits(h, "docs/c"))
	out := <-got
	assert.Contains(t, out, "theirs\ncat: ../lib/key: No such file or directory\ncat: ../lib/docs/c: Permission denied\n")
	go func() { got <- script("cat docs/a; cat docs/b; echo x >docs/a") }()
	h.Must("approvals", "approve", waits(h, "docs/a"))
	h.Must("approvals", "deny", waits(h, "docs/b"))
	h.Must("approvals", "deny", waits(h, "files:write"))
	assert.Equal(t, "one\ncat: docs/b: Permission denied\nbash: line 1: docs/a: Permission denied\n", <-got)
}
