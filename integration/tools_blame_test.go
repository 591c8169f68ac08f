package integration

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
)

// blamed returns the call that a refused operation on a path is recorded for.
func (h *host) blamed(path string) (call string) {
	h.t.Helper()
	h.eventually("the refusal of "+path+" is recorded", func() bool {
		for _, e := range h.events("a") {
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
func (h *host) callOf(tool string) string { return h.last("a", tool).Call }

// TestToolsBlame: a file operation that was refused is recorded with the call
// that it happened in, whoever of the call's processes did it.
func TestToolsBlame(t *testing.T) {
	h := newHost(t, map[string]string{"a": "view: {paths: {\"ro/**\": read}}"})
	plant(t, h.scope("a"), "ro/f", "out/one => /etc/passwd", "out/two => /etc/shadow")
	u := h.connect("a")
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
			_, err := u.send(u.soon(), c.tool, c.args)
			require.NoError(t, err)
			assert.Equal(t, h.callOf(c.tool), h.blamed(c.path))
		})
	}
}

// TestToolsBlameDaemon: of a process that has left both its session and its
// ancestors nobody knows the call; that it was refused is recorded all the same.
func TestToolsBlameDaemon(t *testing.T) {
	h := newHost(t, map[string]string{"a": "view: {paths: {\"ro/**\": read}}"})
	plant(t, h.scope("a"), "ro/f")
	u := h.connect("a")
	u.bash("(setsid sh -c 'until [ $(ps -o ppid= $$) = 1 ]; do :; done; touch ro/daemon; touch seen' & ); until [ -e seen ]; do sleep 0.01; done")
	assert.Contains(t, []string{"", h.callOf("bash")}, h.blamed("ro/daemon"), "never another's")
}

// TestToolsBlameForged: such a process is called like a call, kills the file
// worker, and is refused again and again while others' calls start. None of it is
// put on a call that it has not come from.
func TestToolsBlameForged(t *testing.T) {
	h := newHost(t, map[string]string{"a": "view: {paths: {\"ro/**\": read}}"})
	plant(t, h.scope("a"), "ro/f")
	u := h.connect("a")
	_, err := u.send(u.soon(), "write_file", args{"path": "forgedbyagent", "content": `#!/bin/bash
until [ $(ps -o ppid= $$) = 1 ]; do :; done
while : > seen; do
	: > ro/orphan
	for p in /proc/[0-9]*; do
		case $(tr '\0' ' ' < $p/cmdline) in *file-worker*) kill -9 ${p#/proc/} ;; esac
	done
done 2> /dev/null
`})
	require.NoError(t, err)
	u.bash("chmod +x forgedbyagent; setsid -f ./forgedbyagent > /dev/null; until [ -e seen ]; do sleep 0.01; done")
	own := h.callOf("bash")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 10 {
				_, _ = u.send(u.soon(), "stat", args{"path": "."}) // the worker may be dead
				if _, err := u.send(u.soon(), "bash", args{"command": "true"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	refused := 0
	for _, e := range h.events("a") {
		if e.Event == audit.KindFile && e.Path == "ro/orphan" {
			refused++
			assert.Contains(t, []string{"", own}, e.Call)
		}
	}
	assert.NotZero(t, refused)
}

// TestToolsBlameLater: also when the call that began it has long returned.
func TestToolsBlameLater(t *testing.T) {
	h := newHost(t, map[string]string{"a": "view: {paths: {\"ro/**\": read}}"})
	plant(t, h.scope("a"), "ro/f")
	u := h.connect("a")
	out := u.call("bash", args{"command": "until [ -e go ]; do sleep 0.02; done; touch ro/later; setsid touch ro/later2; sleep 100", "background": true})
	id := h.callOf("bash")
	u.call("bash", args{"command": "touch ro/other go"})
	assert.Equal(t, h.callOf("bash"), h.blamed("ro/other"))
	assert.Equal(t, id, h.blamed("ro/later"))
	assert.Equal(t, id, h.blamed("ro/later2"))
	assert.NotEqual(t, id, h.callOf("bash"))
	u.call("process_stop", args{"id": out["process_id"]})
}

// TestToolsBlameApart: calls at the same time are told apart, those of one
// worker as well as those of two clients.
func TestToolsBlameApart(t *testing.T) {
	h := newHost(t, map[string]string{"a": "view: {paths: {\"ro/**\": read}}"})
	plant(t, h.scope("a"), "ro/f")
	users := []*user{h.connect("a"), h.connect("a")}
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			u, tool, a := users[i%2], "write_file", args{"path": "ro/x" + itoa(i), "content": ""}
			if i%4 > 1 {
				tool, a = "bash", args{"command": "touch ro/x" + itoa(i)}
			}
			if _, err := u.send(u.soon(), tool, a); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	calls := map[string]string{} // what each was about
	for _, e := range append(h.calls("a", "write_file"), h.calls("a", "bash")...) {
		calls[e.Call] = strings.TrimPrefix(e.Path+e.Target, ".")
	}
	require.Len(t, calls, 40)
	for i := range 40 {
		path := "ro/x" + itoa(i)
		assert.Contains(t, []string{path, "touch " + path}, calls[h.blamed(path)])
	}
}
