package fleet

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/tree"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/fleet"
	"github.com/scopefs/scopefs/internal/fleet/heads"
	"github.com/scopefs/scopefs/internal/fleet/wire"
	"github.com/scopefs/scopefs/internal/witness"
)

// newWitness lays out a node that has a head signed each second.
func newWitness(t *testing.T, n *natsd, name, more string) *harness.Host {
	t.Helper()
	h := newNode(t, n, name)
	h.Put("scopefs.yaml", fmt.Sprintf("fleet: {nats: 'nats://127.0.0.1:%d', credential: {env: FLEET_SECRET}, name: %s, head_every: 1s%s}\n",
		n.opts.Port, name, more))
	return h
}

// headsOf returns what the fleet shows of a node's heads.
func headsOf(t *testing.T, h *harness.Host, node string) wire.Heads {
	t.Helper()
	var all []wire.SeenNode
	require.NoError(t, json.Unmarshal([]byte(h.Must("fleet", "ps", "--json")), &all))
	for _, n := range all {
		if n.Name == node && n.Heads != nil {
			return *n.Heads
		}
	}
	return wire.Heads{}
}

// found reports whether a node has recorded a violation of another one's log, or its own.
func found(h *harness.Host, about string) bool {
	for _, e := range h.Events("") {
		if e.Event == audit.KindDaemon && e.Verdict == audit.Violation && strings.Contains(e.Detail, about) {
			return true
		}
	}
	return false
}

// TestFleetWitness: nodes sign each other's heads. Two keys verify what others have signed, without scopefs. A server that is
// away and a node that is stopped hold nobody; both catch up.
func TestFleetWitness(t *testing.T) {
	n := newServer(t)
	one, two, three := newWitness(t, n, "one", ", witnesses: 2"), newWitness(t, n, "two", ""), newWitness(t, n, "three", "")
	one.Must("fleet", "init")
	for _, h := range []*harness.Host{one, two, three} {
		h.Start()
	}
	signed := func(beyond int64, by ...string) int64 {
		t.Helper()
		size := int64(0)
		one.Eventually(fmt.Sprintf("%v have signed", by), func() bool {
			h := headsOf(t, one, "one")
			size = h.Size
			return size > beyond && assert.ObjectsAreEqual(by, h.Signed)
		})
		return size
	}
	size := signed(0, "three", "two")
	assert.Regexp(t, `(?m)^one +\w+ .* 2 +\S+$`, one.Must("fleet", "ps"))
	one.Eventually("ps shows it", func() bool { return strings.Contains(one.Must("ps"), "anchor fleet: has the head of") })

	head := one.Base + "/state/heads/fleet"
	text, err := os.ReadFile(head)
	require.NoError(t, err)
	var keys []note.Verifier
	for _, h := range []*harness.Host{two, three} {
		public, err := os.ReadFile(h.Base + "/state/fleet/witness/key.pub")
		require.NoError(t, err)
		assert.Contains(t, one.Must("fleet", "ps", "--keys"), strings.TrimSpace(string(public)))
		key, err := witness.NewVerifier(string(public))
		require.NoError(t, err)
		keys = append(keys, key)
	}
	opened, err := note.Open(text, note.VerifierList(keys...))
	require.NoError(t, err)
	assert.Len(t, opened.Sigs, 2)
	one.Must("audit", "verify", "--checkpoint", head)
	checkCosigners(t, one, two, three)

	n.kill()
	deny(t, one, 100)
	n.start()
	size = signed(size+99, "three", "two")

	three.Stop()
	deny(t, one, 10)
	two.Eventually("two signs without three", func() bool { return headsOf(t, two, "two").Size > 0 })
	one.Eventually("the operator is warned", func() bool {
		return one.Recorded("", audit.Event{Event: audit.KindAudit, Outcome: audit.OutcomeLate})
	})
	three.Start()
	signed(size, "three", "two")
	for _, h := range []*harness.Host{one, two, three} {
		assert.False(t, found(h, ""), "nothing is wrong")
		assert.True(t, h.Recorded("", audit.Event{Event: audit.KindDaemon, Outcome: fleet.HeadPinned}))
	}
}

// checkCosigners has a node say, from its disk, which of its witnesses have signed how much of its log, and prove an event by what
// they have signed. A witness that was given counts if its own signature of that head is there, once.
func checkCosigners(t *testing.T, one, two, three *harness.Host) {
	t.Helper()
	keyOf := func(h *harness.Host) string { return h.Base + "/state/fleet/witness/key.pub" }
	text, err := os.ReadFile(keyOf(two))
	require.NoError(t, err)
	key := strings.TrimSpace(string(text))
	private, err := witness.NewKey("scopefs.witness/two/1")
	require.NoError(t, err)
	stranger, err := witness.NewSigner(private)
	require.NoError(t, err)

	said, _, code := one.Try("audit", "verify")
	assert.Equal(t, 4, code, "its own keys vouch for nothing")
	assert.Regexp(t, `(?m)^witness: two, `+regexp.QuoteMeta(key)+` has signed up to event [1-9]\d*, 20\d\d-`, said)
	assert.Regexp(t, `(?m)^witness: three, scopefs.witness/three/\S+ has signed up to event`, said)
	assert.Contains(t, one.Must("audit", "verify", "--witness", key, "--witness", keyOf(three)), "witnesses that were given and have signed: 2 of 2\n")
	said, _, code = one.Try("audit", "verify", "--witness", stranger.Public())
	assert.Equal(t, 4, code)
	assert.Contains(t, said, "0 of 1")
	quorum := []string{"audit", "verify", "--witness", key, "--witness", keyOf(three), "--witness", stranger.Public(), "--quorum"}
	assert.Regexp(t, `(?m)^a quorum of 2 of them has signed up to event [1-9]\d*$`, one.Must(append(quorum, "2")...))
	_, _, code = one.Try(append(quorum, "3")...)
	assert.Equal(t, 4, code)
	_, _, code = one.Try(append(quorum, "4")...)
	assert.Equal(t, 2, code, "three keys were given")

	var proof tree.Proof
	require.NoError(t, json.Unmarshal([]byte(one.Must("audit", "prove", "1")), &proof))
	file := filepath.Join(t.TempDir(), "proof")
	log := one.Base + "/state/audit/key.pub"
	twice := func(head string) string {
		_, line, _ := strings.Cut(head, "\n— scopefs.witness/two/")
		line, _, _ = strings.Cut(line, "\n")
		return head + "— scopefs.witness/two/" + line + "\n"
	}
	bySecond := strings.TrimPrefix(twice(proof.Head), proof.Head)
	alone := func(head string) string {
		text, sigs, _ := strings.Cut(head, "\n\n")
		first, _, _ := strings.Cut(sigs, "\n")
		return text + "\n\n" + first + "\n"
	}
	for name, c := range map[string]struct {
		head   string
		given  []string
		quorum string
		code   int
		want   string
	}{
		"both":               {proof.Head, []string{key, keyOf(three)}, "", 0, "2 of 2"},
		"a quorum":           {proof.Head, []string{key, keyOf(three)}, "2", 0, "2 of 2"},
		"a stranger":         {proof.Head, []string{key, keyOf(three), stranger.Public()}, "2", 0, "2 of 3"},
		"a stranger is none": {proof.Head, []string{key, keyOf(three), stranger.Public()}, "3", 4, "2 of 3"},
		"one twice":          {twice(proof.Head), []string{key, keyOf(two), stranger.Public()}, "", 0, "1 of 2"},
		"one is no quorum":   {alone(proof.Head) + bySecond + bySecond, []string{key, keyOf(three)}, "2", 4, "1 of 2"},
		"without":            {alone(proof.Head), []string{key}, "", 4, "0 of 1"},
		"nobody":             {proof.Head, []string{stranger.Public()}, "", 4, "0 of 1"},
	} {
		forged := proof
		forged.Head = c.head
		text, err := json.Marshal(forged)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, text, 0o600))
		args := []string{"audit", "check-proof", file, "--key", log}
		for _, witness := range c.given {
			args = append(args, "--witness", witness)
		}
		if c.quorum != "" {
			args = append(args, "--quorum", c.quorum)
		}
		_, said, code := one.Try(args...)
		assert.Equal(t, c.code, code, name)
		assert.Contains(t, said, "witnesses that were given and have signed: "+c.want+"\n", name)
	}
	_, said, code = one.Try("audit", "check-proof", file, "--witness", log)
	assert.Equal(t, 2, code, "the log's own key is none of a witness: %s", said)
	_, said, code = one.Try("audit", "check-proof", file, "--quorum", "2")
	assert.Equal(t, 2, code, "a quorum of nobody: %s", said)

	// The signatures come with a copy of the log, among other text.
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir+"/audit", os.DirFS(one.Base+"/state/audit")))
	kept := append([]byte("# kept\n"), harness.ReadAll(t, one.Base+"/state/heads/fleet")...)
	require.NoError(t, os.WriteFile(dir+"/kept", append(kept, "\nand more\n"...), 0o600))
	require.NoError(t, os.WriteFile(dir+"/alone", []byte(alone(proof.Head)), 0o600))
	for name, want := range map[string]int{"kept": 0, "alone": 4} {
		text, said, code := one.Try("audit", "prove", "1", "--log", dir+"/audit", "--checkpoint", dir+"/"+name)
		require.Zero(t, code, said)
		assert.Equal(t, want != 0, strings.Contains(said, "no witness has signed"), said)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, _, code = one.Try("audit", "check-proof", file, "--key", log, "--witness", key, "--witness", keyOf(three), "--quorum", "2")
		assert.Equal(t, want, code, name)
	}
	_, said, code = one.Try("audit", "prove", "1", "--log", dir+"/audit", "--checkpoint", log)
	assert.Equal(t, 1, code)
	assert.Contains(t, said, "it has no head of the log")
}

// TestFleetWitnessRolledBack: the log of a node is restored from an old copy, as a whole with its {state}. Others name the
// node, and sign nothing more of it; the node itself learns it from them.
func TestFleetWitnessRolledBack(t *testing.T) {
	n := newServer(t)
	one, two := newWitness(t, n, "one", ""), newWitness(t, n, "two", "")
	one.Must("fleet", "init")
	one.Start()
	two.Start()
	one.Eventually("two has signed", func() bool { return headsOf(t, one, "one").Size > 0 })
	restore := copyOf(one, "audit")
	deny(t, one, 200)
	one.Eventually("two has signed more", func() bool { return headsOf(t, one, "one").Size > 200 })
	restore()
	one.Start()
	two.Eventually("two names one", func() bool {
		deny(t, one, 1)
		return found(two, "the node one: its")
	})
	one.Eventually("the operator sees it", func() bool {
		return regexp.MustCompile(`(?m)^found by +two +\S+ +the node one: its`).MatchString(one.Must("fleet", "ps"))
	})
	one.Eventually("one knows it", func() bool { return found(one, "this log has") })
	assert.False(t, found(two, "the node two"))
}

// copyOf stops a node for a copy of a directory of its {state}, and starts it. restore stops the node, and puts the copy in place.
func copyOf(h *harness.Host, name string) (restore func()) {
	h.T.Helper()
	at, copied := filepath.Join(h.Base, "state", name), filepath.Join(h.T.TempDir(), "copy")
	h.Stop()
	require.NoError(h.T, os.CopyFS(copied, os.DirFS(at)))
	h.Start()
	return func() {
		h.T.Helper()
		h.Stop()
		require.NoError(h.T, os.RemoveAll(at))
		require.NoError(h.T, os.CopyFS(at, os.DirFS(copied)))
		require.NoError(h.T, os.RemoveAll(h.Base+"/state/streams"))
	}
}

// TestFleetWitnessRestored: the {state} of a witness is restored from an old copy. It signs what follows, and finds nothing wrong with a log that
// has grown since. TestFleetWitnessForked has it use what the server has of its signatures.
func TestFleetWitnessRestored(t *testing.T) {
	n := newServer(t)
	one, two := newWitness(t, n, "one", ""), newWitness(t, n, "two", "")
	one.Must("fleet", "init")
	one.Start()
	two.Start()
	signed := func(beyond int64) (size int64) {
		t.Helper()
		one.Eventually("two has signed", func() bool { size = headsOf(t, one, "one").Size; return size > beyond })
		return size
	}
	old := signed(0)
	restore := copyOf(two, "fleet/witness")
	deny(t, one, 100)
	size := signed(old + 99)
	restore()
	deny(t, one, 100)
	two.Start()
	signed(size + 99)
	for _, h := range []*harness.Host{one, two} {
		assert.False(t, found(h, ""), "nothing is wrong")
	}
}

// TestFleetWitnessForked: the log of a node is restored from an old copy, and grows beyond what its witness has signed while the server
// is away, to another history. The witness names it, although its own {state} is restored from a copy of the same time, keeps both
// heads, and signs nothing more of it. It signs the node's next log.
func TestFleetWitnessForked(t *testing.T) {
	n := newServer(t)
	one, two := newWitness(t, n, "one", ""), newWitness(t, n, "two", "")
	one.Must("fleet", "init")
	one.Start()
	two.Start()
	one.Eventually("two has signed", func() bool { return headsOf(t, one, "one").Size > 0 })
	restoreLog, restoreWitness := copyOf(one, "audit"), copyOf(two, "fleet/witness")
	deny(t, one, 100)
	one.Eventually("two has signed more", func() bool { return headsOf(t, one, "one").Size > 100 })
	restoreLog()
	restoreWitness()
	size := headsOf(t, one, "one").Size
	n.kill()
	one.Start()
	deny(t, one, int(size)+100)
	n.start()
	two.Start()
	two.Eventually("two names one", func() bool {
		return two.Recorded("", audit.Event{Event: audit.KindDaemon, Outcome: heads.Forked, Verdict: audit.Violation})
	})
	assert.True(t, found(two, "two histories"))
	one.Eventually("the operator sees it", func() bool {
		return regexp.MustCompile(`(?m)^found by +two +\S+ +the node one: its`).MatchString(one.Must("fleet", "ps"))
	})
	var kept struct{ Wrong struct{ Heads []string } }
	file := two.Base + "/state/fleet/witness/logs/one"
	require.NoError(t, json.Unmarshal([]byte(harness.ReadAll(t, file)), &kept))
	public, err := note.NewVerifier(strings.TrimSpace(harness.ReadAll(t, one.Base+"/state/audit/key.pub")))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(kept.Wrong.Heads), 2)
	for _, text := range kept.Wrong.Heads {
		_, err := tree.OpenHead([]byte(text), public)
		require.NoError(t, err, "the log has signed it")
	}

	kv, err := n.client().KeyValue(t.Context(), "scopefs_heads")
	require.NoError(t, err)
	answer := func() jetstream.KeyValueEntry {
		t.Helper()
		entry, err := kv.Get(t.Context(), "sig.one.two")
		require.NoError(t, err)
		return entry
	}
	two.Stop()
	before := answer().Revision()
	deny(t, one, 10)
	two.Start()
	two.Eventually("two refuses the next one", func() bool { return answer().Revision() > before })
	assert.Contains(t, string(answer().Value()), "two histories")
	assert.Equal(t, size, headsOf(t, one, "one").Size)

	// The operator moves the log away, and has the witness take the key of the next one.
	one.Stop()
	require.NoError(t, os.Rename(one.Base+"/state/audit", one.Base+"/state/audit.forked"))
	one.Start()
	two.Eventually("two refuses the key of the next log", func() bool {
		deny(t, one, 1)
		return strings.Contains(string(answer().Value()), "remove "+file)
	})
	two.Stop()
	require.NoError(t, os.Remove(file))
	two.Start()
	two.Eventually("two signs the next log", func() bool {
		deny(t, one, 1)
		return headsOf(t, one, "one").Size > 0
	})
}

// TestFleetWitnessForged: whoever has the server has nothing signed that the log has not signed, and nothing taken that a witness
// has not signed. What it makes up is recorded, and bounded.
func TestFleetWitnessForged(t *testing.T) {
	n := newServer(t)
	one, two := newWitness(t, n, "one", ""), newWitness(t, n, "two", "")
	one.Must("fleet", "init")
	one.Start()
	two.Start()
	one.Eventually("two has signed", func() bool { return headsOf(t, one, "one").Size > 0 })
	kv, err := n.client().KeyValue(t.Context(), "scopefs_heads")
	require.NoError(t, err)
	entry, err := kv.Get(t.Context(), "ask.two.one")
	require.NoError(t, err)
	var offer wire.Offer
	require.NoError(t, json.Unmarshal(entry.Value(), &offer))
	forged := offer
	forged.Head = strings.Replace(offer.Head, "\n", "\n1", 1)
	text, err := json.Marshal(forged)
	require.NoError(t, err)
	refusedWith := func(h *harness.Host, why string) func() bool {
		return func() bool {
			for _, e := range h.Events("") {
				if e.Outcome == fleet.HeadRefused && strings.Contains(e.Detail, why) {
					return true
				}
			}
			return false
		}
	}
	repeat := func(key string, text []byte, h *harness.Host, why string) {
		t.Helper()
		h.Eventually(why, func() bool {
			_, err := kv.Put(t.Context(), key, text)
			require.NoError(t, err)
			return refusedWith(h, why)()
		})
	}
	repeat("ask.two.one", text, two, "not signed by the log")
	repeat("ask.two.one", []byte(strings.Repeat("[", wire.MaxOffer)), two, "this version reads")
	entry, err = kv.Get(t.Context(), "sig.one.two")
	require.NoError(t, err)
	var answer wire.Answer
	require.NoError(t, json.Unmarshal(entry.Value(), &answer))
	answer.Head = strings.Replace(answer.Head, "\n", "\n1", 1)
	text, err = json.Marshal(answer)
	require.NoError(t, err)
	repeat("sig.one.two", text, one, "no head of this log")
	answer.Key = headsOf(t, one, "one").Witness
	text, err = json.Marshal(answer)
	require.NoError(t, err)
	repeat("sig.one.two", text, one, "another key")
	size := headsOf(t, one, "one").Size
	deny(t, one, 50)
	one.Eventually("two signs what follows", func() bool { return headsOf(t, one, "one").Size >= size+50 })
	assert.False(t, found(two, ""))
	assert.False(t, found(one, ""))
}
