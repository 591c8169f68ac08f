package fleet

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/fleet"
	"github.com/scopefs/scopefs/internal/fleet/order"
)

// defining has a node take definitions of operators.
func defining(h *harness.Host, n *natsd, name string, operators ...operator) {
	join(h, n, name, operators...)
	text, err := os.ReadFile(filepath.Join(h.Base, "scopefs.yaml"))
	require.NoError(h.T, err)
	h.Put("scopefs.yaml", strings.Replace(string(text), "fleet: {", "fleet: {definitions: true, ", 1))
}

// definition writes the file of a definition, and returns its path.
func definition(t *testing.T, name, front string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name+".md")
	require.NoError(t, os.WriteFile(file, []byte(fmt.Sprintf("---\nname: %s\ndescription: test\n%s\n---\nprompt\n", name, front)), 0o600))
	return file
}

// mounts reports whether a daemon has an agent, mounted.
func mounts(h *harness.Host, id string) bool {
	for _, a := range h.PS() {
		if a.ID == id {
			return a.State == "mounted"
		}
	}
	return false
}

func outcomes(h *harness.Host, outcome, detail string) (n int) {
	for _, e := range h.Events("") {
		if e.Event == audit.KindDaemon && e.Outcome == outcome && strings.Contains(e.Detail, detail) {
			n++
		}
	}
	return n
}

// TestFleetDefinitions: an operator gives agents to nodes, changes them and takes them away. What does not load changes nothing.
// Without the server, and after a restart, the last version holds.
func TestFleetDefinitions(t *testing.T) {
	n := newServer(t)
	one, two := newNode(t, n, "one"), newNode(t, n, "two")
	one.Must("fleet", "init")
	ada := newOperator(t, one, "ada")
	defining(one, n, "one", ada)
	join(two, n, "two", ada)
	for _, h := range []*harness.Host{one, two} {
		harness.Plant(t, h.Scope("b"), "x=1")
		h.Start()
	}
	rights := func(path, right string) string {
		return "view: {paths: {'" + path + "': " + right + "}, changes: direct}"
	}
	put := func(front string, more ...string) {
		one.Must(append([]string{"fleet", "definitions", "put", definition(t, "b", front), "--key", ada.file}, more...)...)
	}
	row := func(want string) func() bool {
		return func() bool {
			return regexp.MustCompile(`(?m)^b +one +` + want).MatchString(one.Must("fleet", "definitions", "--nodes"))
		}
	}
	writes := func() bool {
		f, err := os.OpenFile(filepath.Join(one.View("b"), "x"), os.O_WRONLY, 0)
		if err == nil {
			f.Close()
		}
		return err == nil
	}
	put(rights("**", "write"))
	one.Eventually("the node has the agent", func() bool { return mounts(one, "b") })
	one.Eventually("the node shows it", row("holds .* ada"))
	assert.True(t, writes())
	assert.Equal(t, 1, outcomes(one, fleet.DefinitionTaken, "of the agent \"b\", by the fleet's key ada"))
	assert.False(t, mounts(two, "b"), "it takes none: its settings do not say definitions")

	put(rights("**", "read"))
	one.Eventually("the new version holds", func() bool { return !writes() })
	put("view: {paths: {'**': everything}}")
	one.Eventually("the node refuses it", func() bool { return outcomes(one, fleet.DefinitionRefused, "everything") == 1 })
	one.Eventually("and says so", row("refused .* ada +.*everything"))
	assert.True(t, mounts(one, "b"))
	assert.False(t, writes(), "the last good version holds")

	// The node's own definition counts before the fleet's, whichever came first.
	one.Define("b", rights("**", "write"))
	one.Must("reload")
	one.Eventually("its own holds", writes)
	require.NoError(t, os.Remove(filepath.Join(one.Base, "agents.d", "b.md")))
	one.Must("reload")
	one.Eventually("the fleet's holds", func() bool { return !writes() })

	put(rights("**", "read"), "--node", "tw*")
	one.Eventually("it is not for the node", func() bool { _, _, code := one.Try("run", "b", "--", "true"); return code != 0 })
	put(rights("**", "read"), "--node", "o*", "--node", "x")
	one.Eventually("it is", func() bool { _, _, code := one.Try("run", "b", "--", "true"); return code == 0 })
	n.kill()
	one.Kill()
	one.Start()
	assert.True(t, mounts(one, "b"), "without the server, too")
	assert.False(t, writes())
	n.start()
	one.Must("fleet", "definitions", "remove", "b", "--key", ada.file)
	assert.Regexp(t, `(?m)^b +\S+Z +removed +0 of 0`, one.Must("fleet", "definitions"))
	_, errs, code := one.Try("fleet", "definitions", "remove", "c", "--key", ada.file)
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "has no definition")
	one.Eventually("it is removed", func() bool { _, _, code := one.Try("run", "b", "--", "true"); return code != 0 })
}

// TestFleetDefinitionAttack: whoever has the server, even all of it, defines no agent, and brings no version back.
func TestFleetDefinitionAttack(t *testing.T) {
	n := newServer(t)
	n.kill()
	n.opts.MaxPayload = 16 << 20
	n.start()
	h := newNode(t, n, "one")
	h.Must("fleet", "init")
	ada, mallory, twin := newOperator(t, h, "ada"), newOperator(t, h, "mallory"), newOperator(t, h, "ada")
	defining(h, n, "one", ada)
	for _, id := range []string{"b", "c"} {
		harness.Plant(t, h.Scope(id), "x=1")
	}
	h.Start()
	js := n.client()
	stream, err := js.Stream(t.Context(), "KV_scopefs_definitions")
	require.NoError(t, err)
	config := stream.CachedInfo().Config
	config.MaxMsgSize = -1
	_, err = js.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	give := func(key string, signed []byte) {
		t.Helper()
		_, err := js.Publish(t.Context(), "$KV.scopefs_definitions."+key, signed)
		require.NoError(t, err)
	}
	text := func(name, about string) string {
		return fmt.Sprintf("---\nname: %s\ndescription: %s\nview: {changes: direct}\n---\n", name, about)
	}
	now := time.Now().UnixMilli()
	sign := func(o operator, d order.Definition) []byte {
		t.Helper()
		signed, err := d.Sign(o.private)
		require.NoError(t, err)
		return signed
	}
	raw := func(text string) []byte { // what Sign refuses
		signer, err := note.NewSigner(strings.TrimSpace(ada.private))
		require.NoError(t, err)
		signed, err := note.Sign(&note.Note{Text: text}, signer)
		require.NoError(t, err)
		return signed
	}
	good := order.Definition{Name: "b", Version: now, Text: text("b", "good")}
	refused := func(why string, times int) {
		t.Helper()
		h.Eventually("it is refused: "+why, func() bool { return outcomes(h, fleet.DefinitionRefused, why) == times })
	}
	give("c", sign(mallory, order.Definition{Name: "c", Version: now, Text: text("c", "forged")}))
	refused("no trusted key", 1)
	give("c", sign(twin, order.Definition{Name: "c", Version: now, Text: text("c", "forged")}))
	refused("no trusted key", 2)
	give("c", []byte(strings.Replace(string(sign(ada, order.Definition{Name: "c", Version: now, Text: text("c", "good")})), "good", "evil", 1)))
	refused("no trusted key", 3)
	give("c", raw("scopefs fleet definition v1\n{\"name\":\"../../x\",\"version\":1,\"text\":\"x\"}\n"))
	refused("this version reads", 1)
	give("c", sign(ada, order.Definition{Name: "c", Version: now + 7_200_000, Text: text("c", "of the future")}))
	refused("clocks", 1)
	decision, err := order.Decision{Node: "one", Request: "x", Hash: "x", Approve: true, Expires: time.Now().Add(time.Minute), Nonce: order.NewNonce()}.Sign(ada.private)
	require.NoError(t, err)
	give("c", decision)
	refused("it is no definition", 1)
	_, err = js.Publish(t.Context(), "scopefs.orders.one", sign(ada, good))
	require.NoError(t, err)
	h.Eventually("a definition is no decision", func() bool { return outcomes(h, fleet.Refused, "it is no decision") == 1 })
	give("c", []byte(strings.Repeat("x", 10<<20)))
	refused("larger", 1)
	give("c", sign(ada, order.Definition{Name: "c", Version: now, Nodes: []string{"two"}, Text: text("c", "of another node")}))
	h.Eventually("it is taken, and for another node", func() bool { return outcomes(h, fleet.DefinitionTaken, `"c"`) == 1 })

	// An older version, under its key or another one, replaces nothing. That the server has a key no more removes nothing.
	give("b", sign(ada, good))
	h.Eventually("the agent is there", func() bool { return mounts(h, "b") })
	newer := order.Definition{Name: "b", Version: now + 1, Text: text("b", "newer")}
	give("b", sign(ada, newer))
	h.Eventually("the newer one is taken", func() bool { return outcomes(h, fleet.DefinitionTaken, `"b"`) == 2 })
	give("b", sign(ada, good))
	refused("is not newer", 1)
	give("other", sign(ada, good))
	refused("is not newer", 2)
	give("b", sign(ada, order.Definition{Name: "b", Version: now, Removed: true}))
	refused("is not newer", 3)
	kv, err := js.KeyValue(t.Context(), "scopefs_definitions")
	require.NoError(t, err)
	require.NoError(t, kv.Delete(t.Context(), "b"))
	require.NoError(t, kv.Purge(t.Context(), "c"))

	// Many keys that nobody has signed fill no log, and delay what counts for a while at most.
	before := len(h.Events(""))
	for i := range 2_000 {
		_, err := js.PublishAsync(fmt.Sprintf("$KV.scopefs_definitions.k%d", i), []byte("x"), jetstream.WithStallWait(time.Minute))
		require.NoError(t, err)
	}
	<-js.PublishAsyncComplete()
	give("b", sign(ada, order.Definition{Name: "b", Version: now + 2, Text: text("b", "newest")}))
	h.Eventually("the newest one is taken", func() bool { return outcomes(h, fleet.DefinitionTaken, `"b"`) == 3 })
	assert.Less(t, len(h.Events("")), before+100)
	h.Eventually("it alone holds", func() bool { // soon after its record
		kept, err := filepath.Glob(filepath.Join(h.Base, "state", "fleet", "definitions", "*", "agents.d", "*"))
		if err != nil || len(kept) != 1 || filepath.Base(kept[0]) != "b.md" {
			return false
		}
		content, err := os.ReadFile(kept[0])
		return err == nil && strings.Contains(string(content), "newest")
	})

	// Without trust in its key a definition ends, also for a command that needs no daemon. With the trust it comes back.
	h.Stop()
	defining(h, n, "one", mallory)
	_, _, code := h.Try("check", "b")
	assert.NotZero(t, code)
	h.Start()
	assert.False(t, mounts(h, "b"))
	h.Stop()
	defining(h, n, "one", ada, mallory)
	h.Start()
	h.Eventually("the agent is there", func() bool { return mounts(h, "b") })
}
