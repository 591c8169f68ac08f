package tools

import (
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// blamed returns the call that a refused operation on a path is recorded for.
func blamed(h *harness.Host, path string) (call string) {
	h.T.Helper()
	h.Eventually("the refusal of "+path+" is recorded", func() bool {
		for _, e := range h.Events("a") {
			if e.Event == audit.KindFile && e.Path == path {
				call = e.Call
				return true
			}
		}
		return false
	})
	return call
}

// callOf is the id of the last call of a tool.
func callOf(h *harness.Host, tool string) string { return h.Last("a", tool).Call }

// TestToolsBlame: a file operation that was refused is recorded with the call
// that it happened in, whoever of the call's processes did it.
func TestToolsBlame(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {paths: {\"ro/**\": read}}"})
	harness.Plant(t, h.Scope("a"), "ro/f", "out/one => /etc/passwd", "out/two => /etc/shadow")
	u := h.Connect("a")
	for name, c := range map[string]struct {
		tool string
		args args
		path string
	}{
		"bash":            {"bash", args{"command": "touch ro/bash"}, "ro/bash"},
		"a child":         {"bash", args{"command": "sh -c 'touch ro/child; :'; :"}, "ro/child"},
		"a session":       {"bash", args{"command": "setsid sh -c 'setsid sh -c \"touch ro/session; :\"; :'; :"}, "ro/session"},
		"an orphan":       {"bash", args{"command": "(sh -c 'until [ $(ps -o ppid= $$) = 1 ]; do :; done; touch ro/orphan; touch seen' & ); until [ -e seen ]; do sleep 0.01; done"}, "ro/orphan"},
		"write_file":      {"write_file", args{"path": "ro/written", "content": ""}, "ro/written"},
		"make_dir":        {"make_dir", args{"path": "ro/made"}, "ro/made"},
		"a link by cat":   {"bash", args{"command": "cat out/one"}, "out/one"},
		"a link, by read": {"read_file", args{"path": "out/two"}, "out/two"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := u.Send(u.Soon(), c.tool, c.args)
			require.NoError(t, err)
			assert.Equal(t, callOf(h, c.tool), blamed(h, c.path))
		})
	}
}

// TestToolsBlameDaemon: of a process that has left both its session and its
// ancestors nobody knows the call; that it was refused is recorded all the same.
func TestToolsBlameDaemon(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {paths: {\"ro/**\": read}}"})
	harness.Plant(t, h.Scope("a"), "ro/f")
	u := h.Connect("a")
	u.Bash("(setsid sh -c 'until [ $(ps -o ppid= $$) = 1 ]; do :; done; touch ro/daemon; touch seen' & ); until [ -e seen ]; do sleep 0.01; done")
	assert.Contains(t, []string{"", callOf(h, "bash")}, blamed(h, "ro/daemon"), "never another's")
}

// TestToolsBlameForged: such a process is called like a call, kills the file
// worker, and is refused again and again while others' calls start. None of it is
// put on a call that it has not come from.
func TestToolsBlameForged(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {paths: {\"ro/**\": read}}"})
	harness.Plant(t, h.Scope("a"), "ro/f")
	u := h.Connect("a")
	_, err := u.Send(u.Soon(), "write_file", args{"path": "forgedbyagent", "content": `#!/bin/bash
until [ $(ps -o ppid= $$) = 1 ]; do :; done
while : > seen; do
	: > ro/orphan
	for p in /proc/[0-9]*; do
		case $(tr '\0' ' ' < $p/cmdline) in scopefs-files*) kill -9 ${p#/proc/} ;; esac
	done
done 2> /dev/null
`})
	require.NoError(t, err)
	u.Bash("chmod +x forgedbyagent; setsid -f ./forgedbyagent > /dev/null; until [ -e seen ]; do sleep 0.01; done")
	own := callOf(h, "bash")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 10 {
				_, _ = u.Send(u.Soon(), "stat", args{"path": "."}) // the worker may be dead
				if _, err := u.Send(u.Soon(), "bash", args{"command": "true"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	refused := 0
	for _, e := range h.Events("a") {
		if e.Event == audit.KindFile && e.Path == "ro/orphan" {
			refused++
			assert.Contains(t, []string{"", own}, e.Call)
		}
	}
	assert.NotZero(t, refused)
}

// TestToolsBlameLater: also when the call that began it has long returned.
func TestToolsBlameLater(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {paths: {\"ro/**\": read}}"})
	harness.Plant(t, h.Scope("a"), "ro/f")
	u := h.Connect("a")
	out := u.Call("bash", args{"command": "until [ -e go ]; do sleep 0.02; done; touch ro/later; setsid touch ro/later2; sleep 100", "background": true})
	id := callOf(h, "bash")
	u.Call("bash", args{"command": "touch ro/other go"})
	assert.Equal(t, callOf(h, "bash"), blamed(h, "ro/other"))
	assert.Equal(t, id, blamed(h, "ro/later"))
	assert.Equal(t, id, blamed(h, "ro/later2"))
	assert.NotEqual(t, id, callOf(h, "bash"))
	u.Call("process_stop", args{"id": out["process_id"]})
}

// TestToolsBlameApart: calls at the same time are told apart, those of one
// worker as well as those of two clients.
func TestToolsBlameApart(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {paths: {\"ro/**\": read}}"})
	harness.Plant(t, h.Scope("a"), "ro/f")
	users := []*harness.User{h.Connect("a"), h.Connect("a")}
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			u, tool, a := users[i%2], "write_file", args{"path": "ro/x" + strconv.Itoa(i), "content": ""}
			if i%4 > 1 {
				tool, a = "bash", args{"command": "touch ro/x" + strconv.Itoa(i)}
			}
			if _, err := u.Send(u.Soon(), tool, a); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	calls := map[string]string{} // what each was about
	for _, e := range append(h.Calls("a", "write_file"), h.Calls("a", "bash")...) {
		calls[e.Call] = strings.TrimPrefix(e.Path+e.Target, ".")
	}
	require.Len(t, calls, 40)
	for i := range 40 {
		path := "ro/x" + strconv.Itoa(i)
		assert.Contains(t, []string{path, "touch " + path}, calls[blamed(h, path)])
	}
}
