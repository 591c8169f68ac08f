package csi

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/scopefs/scopefs/audit"
)

// TestVolumeGivenUp: kubelet gives a request up at any moment. The pod gets nothing then, nothing that was made for it stays, and a
// pod that has the agent keeps its view.
func TestVolumeGivenUp(t *testing.T) {
	n := newNode(t, "")
	require.NoError(t, os.MkdirAll(filepath.Join(n.prefix, "b-1/sub"), 0o755))
	a := pod{uid: "a", namespace: "team-b", account: "x", attributes: map[string]string{"agent": "b-1"}}
	b := a
	b.uid = "b"
	published := func(p pod) (times int) {
		for _, e := range n.Events("b-1") {
			if e.Event == audit.KindView && e.Outcome == "volume published" && e.Target == "pod "+p.namespace+"/pod-"+p.uid {
				times++
			}
		}
		return times
	}
	// giveUp publishes, and gives up when it is so; more requests for the pod are refused until the first one has ended.
	giveUp := func(p pod, when func(before int) bool) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(n.target(p)), 0o755))
		ctx, cancel := context.WithCancel(t.Context())
		before, ended := published(p), make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = n.client.NodePublishVolume(ctx, n.request(p))
		}()
		for done := false; !done && !when(before); {
			select {
			case <-ended:
				done = true
			default:
			}
		}
		cancel()
		<-ended
		require.NoError(t, n.unpublish(p))
	}
	moments := map[string]func(p pod) func(before int) bool{
		"at once":               func(pod) func(int) bool { return func(int) bool { return true } },
		"it is recorded":        func(p pod) func(int) bool { return func(before int) bool { return published(p) > before } },
		"there is a definition": func(pod) func(int) bool { return func(int) bool { return len(n.left("b-1")) > 0 } },
		"there is a view":       func(pod) func(int) bool { return func(int) bool { return n.Mounted(n.Base+"/run") > 2 } },
	}
	for name, moment := range moments {
		for range 10 {
			giveUp(a, moment(a))
			n.Eventually(name+": nothing stays", func() bool { return len(n.left("b-1")) == 0 && n.Agent("b-1").ID == "" })
			assert.NoDirExists(t, n.target(a), name)
		}
	}
	require.NoError(t, n.publish(a))
	view := n.ViewPID("b-1")
	for name, moment := range moments {
		for range 10 {
			giveUp(b, moment(b))
			require.Equal(t, view, n.ViewPID("b-1"), name)
			require.DirExists(t, filepath.Join(n.target(a), "sub"), name)
		}
	}
	for range 5 { // the view of b is one that starts anew
		old := 0
		n.Eventually("there is a view", func() bool { old = n.ViewPID("b-1"); return old > 0 })
		require.NoError(t, unix.Kill(old, unix.SIGKILL))
		giveUp(b, moments["it is recorded"](b))
		n.Eventually("a has the next view", func() bool {
			_, err := os.Stat(filepath.Join(n.target(a), "sub"))
			return err == nil && n.ViewPID("b-1") != old
		})
	}
	require.NoError(t, n.unpublish(a))
	n.Eventually("the definition is removed", func() bool { return len(n.left("b-1")) == 0 })
}

// TestVolumeOfOthers: a pod that asks for an agent that the operator defines otherwise does not end its view.
func TestVolumeOfOthers(t *testing.T) {
	n := newNode(t, "")
	n.Define("c-2", "user: '0'")
	require.NoError(t, os.MkdirAll(n.Scope("c-2"), 0o755))
	n.Must("up", "c-2")
	view := n.ViewPID("c-2")
	fails(t, n.publish(pod{uid: "mine", namespace: "team-c", account: "x", attributes: map[string]string{"agent": "c-2"}}), codes.Unavailable, "defined otherwise")
	assert.Equal(t, view, n.ViewPID("c-2"))
}
