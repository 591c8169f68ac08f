package heads

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/tree"
	"github.com/scopefs/scopefs/internal/fleet/wire"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/internal/witness"
)

// testLog is a log in memory, and its key.
type testLog struct {
	t      *testing.T
	key    string
	signer note.Signer
	hashes []tlog.Hash
	size   int64
}

func newLog(t *testing.T, id string) *testLog {
	t.Helper()
	private, public, err := note.GenerateKey(rand.Reader, tree.OriginPrefix+id)
	require.NoError(t, err)
	signer, err := note.NewSigner(private)
	require.NoError(t, err)
	return &testLog{t: t, key: public, signer: signer}
}

func (l *testLog) read(indexes []int64) (all []tlog.Hash, err error) {
	for _, i := range indexes {
		all = append(all, l.hashes[i])
	}
	return all, nil
}

// grow adds lines up to a size.
func (l *testLog) grow(size int64, text string) *testLog {
	l.t.Helper()
	for ; l.size < size; l.size++ {
		more, err := tlog.StoredHashes(l.size, fmt.Appendf(nil, "%s %d", text, l.size), tlog.HashReaderFunc(l.read))
		require.NoError(l.t, err)
		l.hashes = append(l.hashes, more...)
	}
	return l
}

// copy returns another history of the log, which has a part of it.
func (l *testLog) copy(size int64) *testLog {
	other := *l
	other.size, other.hashes = size, append([]tlog.Hash(nil), l.hashes[:tlog.StoredHashCount(size)]...)
	return &other
}

func (l *testLog) head() string {
	l.t.Helper()
	root, err := tlog.TreeHash(l.size, tlog.HashReaderFunc(l.read))
	require.NoError(l.t, err)
	signed, err := tree.Head{Size: l.size, Root: root}.Sign(l.signer)
	require.NoError(l.t, err)
	return string(signed)
}

func (l *testLog) offer(from ...int64) wire.Offer {
	l.t.Helper()
	o := wire.Offer{Key: l.key, Head: l.head()}
	for _, size := range from {
		if size == 0 || size >= l.size {
			continue
		}
		root, err := tlog.TreeHash(size, tlog.HashReaderFunc(l.read))
		require.NoError(l.t, err)
		proof, err := tlog.ProveTree(l.size, size, tlog.HashReaderFunc(l.read))
		require.NoError(l.t, err)
		o.Growths = append(o.Growths, tree.Growth{From: size, Root: root, Proof: proof})
	}
	return o
}

// node is a witness in a directory.
type node struct {
	t   *testing.T
	dir string
	now time.Time
	*Witness
}

func newNode(t *testing.T, name string, keys ...string) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir(), now: time.Now()}
	n.open(name, keys...)
	t.Cleanup(func() { n.Close() })
	return n
}

func (n *node) open(name string, keys ...string) {
	n.t.Helper()
	w, err := OpenWitness(n.dir, name, keys)
	require.NoError(n.t, err)
	n.Witness = w
}

func (n *node) sign(origin string, o wire.Offer, seen ...wire.Answer) Result {
	n.t.Helper()
	text, err := json.Marshal(o)
	require.NoError(n.t, err)
	var all [][]byte
	for _, a := range seen {
		one, err := json.Marshal(a)
		require.NoError(n.t, err)
		all = append(all, one)
	}
	n.now = n.now.Add(time.Second)
	return n.Cosign(origin, text, all, n.now)
}

// size returns the lines of the head that a witness has signed.
func (n *node) size(r Result, log *testLog) int64 {
	n.t.Helper()
	if r.Answer.Head == "" {
		return 0
	}
	verifier, err := witness.NewVerifier(r.Answer.Key)
	require.NoError(n.t, err)
	_, err = note.Open([]byte(r.Answer.Head), note.VerifierList(verifier))
	require.NoError(n.t, err, "the note is signed by the witness")
	key, err := note.NewVerifier(log.key)
	require.NoError(n.t, err)
	h, err := tree.OpenHead([]byte(r.Answer.Head), key)
	require.NoError(n.t, err, "and by the log")
	return h.Size
}

// TestCosign: a witness signs heads that grow from each other. The offer of a head that is signed changes nothing.
func TestCosign(t *testing.T) {
	w, l := newNode(t, "w"), newLog(t, "1").grow(5, "x")
	r := w.sign("a", l.offer())
	require.Empty(t, r.Answer.Why)
	assert.EqualValues(t, 5, w.size(r, l))
	assert.Equal(t, l.key, r.Pinned)
	for _, size := range []int64{6, 8, 9, 64, 65, 300} {
		before := l.size
		r = w.sign("a", l.grow(size, "x").offer(before))
		require.Empty(t, r.Answer.Why, size)
		assert.EqualValues(t, size, w.size(r, l))
		assert.Equal(t, r.Answer, w.sign("a", l.offer()).Answer, "again")
	}
	assert.Empty(t, r.Pinned)
	w.Close()
	w.open("w")
	r = w.sign("a", l.grow(301, "x").offer(300))
	require.Empty(t, r.Answer.Why, "the next daemon goes on")
	count, wrong := w.Logs(16)
	assert.Equal(t, 1, count)
	assert.Empty(t, wrong)
}

// TestForked: two heads of one size, and a head that grows from another one than the witness has signed, are proven whatever
// the server does, once. The witness signs nothing of that log any more, in the next daemon neither.
func TestForked(t *testing.T) {
	for name, fork := range map[string]func(l *testLog) wire.Offer{
		"of one size":     func(l *testLog) wire.Offer { return l.copy(7).grow(10, "y").offer() },
		"of a known size": func(l *testLog) wire.Offer { return l.copy(2).grow(4, "y").offer() },
		"grown":           func(l *testLog) wire.Offer { return l.copy(7).grow(20, "y").offer(10) },
		"counts": func(l *testLog) wire.Offer {
			root, _ := tlog.TreeHash(l.size, tlog.HashReaderFunc(l.read))
			signed, _ := tree.Head{Size: l.size, Root: root, Counts: tree.Counts{Denied: 1}}.Sign(l.signer)
			return wire.Offer{Key: l.key, Head: string(signed)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, l := newNode(t, "w"), newLog(t, "1").grow(4, "x")
			w.sign("a", l.offer())
			w.sign("a", l.grow(10, "x").offer(4))
			r := w.sign("a", fork(l))
			require.NotNil(t, r.Found, r.Answer.Why)
			assert.Equal(t, Forked, r.Kind)
			assert.Equal(t, "a", r.Found.Node)
			assert.EqualValues(t, 10, w.size(r, l))
			for range 2 {
				r = w.sign("a", l.grow(l.size+1, "x").offer(10))
				assert.Contains(t, r.Answer.Why, "two histories")
				assert.Nil(t, r.Found, "it is recorded once")
				assert.Empty(t, r.Refused)
				assert.EqualValues(t, 10, w.size(r, l))
				w.Close()
				w.open("w")
			}
			_, wrong := w.Logs(16)
			assert.Len(t, wrong, 1)
			kept, err := readLog(w.Witness.dir, "a")
			require.NoError(t, err)
			assert.GreaterOrEqual(t, len(kept.Wrong.Heads), 2, "the evidence is kept")
		})
	}
}

// TestTwoHistories: a node shows each witness another history. The second one sees what the first has signed.
func TestTwoHistories(t *testing.T) {
	one, two := newNode(t, "one"), newNode(t, "two")
	l := newLog(t, "1").grow(7, "x")
	for _, w := range []*node{one, two} {
		require.Empty(t, w.sign("a", l.offer()).Answer.Why)
	}
	other := l.copy(7).grow(12, "y")
	first := one.sign("a", l.grow(9, "x").offer(7))
	require.Empty(t, first.Answer.Why)
	r := two.sign("a", other.offer(7, 9), first.Answer)
	assert.Equal(t, Forked, r.Kind, "by its own proof")
	assert.EqualValues(t, 7, two.size(r, l))

	three := newNode(t, "three")
	require.Empty(t, three.sign("a", l.copy(7).offer()).Answer.Why)
	for range maxLacking - 1 {
		r = three.sign("a", other.offer(7), first.Answer)
		assert.Contains(t, r.Answer.Why, "does not show", "it withholds the proof")
		assert.Nil(t, r.Found)
		assert.Empty(t, r.Refused)
	}
	r = three.sign("a", other.offer(7), first.Answer)
	assert.Equal(t, Unproven, r.Kind)
	assert.EqualValues(t, 7, three.size(r, l))
	r = three.sign("a", l.offer(7), first.Answer)
	assert.Empty(t, r.Answer.Why, "the server may have withheld it")
	_, wrong := three.Logs(16)
	assert.Empty(t, wrong)
}

// TestRolledBack: a log that was restored from a copy is named after its second head. One old head is late on the way.
func TestRolledBack(t *testing.T) {
	w, l := newNode(t, "w"), newLog(t, "1").grow(5, "x")
	old := l.copy(5)
	w.sign("a", l.offer())
	w.sign("a", l.grow(50, "x").offer(5))
	for range 3 {
		r := w.sign("a", old.offer())
		assert.Contains(t, r.Answer.Why, "rolled back")
		assert.Nil(t, r.Found)
	}
	require.Empty(t, w.sign("a", l.grow(51, "x").offer(50)).Answer.Why)
	w.sign("a", old.grow(6, "y").offer(5))
	r := w.sign("a", old.grow(8, "y").offer(6))
	require.Equal(t, RolledBack, r.Kind)
	assert.Nil(t, w.sign("a", old.grow(9, "y").offer(8)).Found, "once")
	r = w.sign("a", old.grow(60, "y").offer(9, 51))
	assert.Equal(t, Forked, r.Kind, "it has grown beyond")
}

// TestForged: what the log has not signed, what is too large, and what is of another node count for nothing.
func TestForged(t *testing.T) {
	w, l := newNode(t, "w"), newLog(t, "1").grow(5, "x")
	forger := newLog(t, "1").grow(9, "z")
	require.Empty(t, w.sign("a", l.offer()).Answer.Why)
	forged := forger.offer(5)
	forged.Key = l.key
	huge := l.grow(6, "x").offer(5)
	huge.Head = huge.Head[:len(huge.Head)-1] + strings.Repeat("\n— x AAAAAAAA", 1000) + "\n"
	many := l.offer(5)
	for range 100 {
		many.Growths = append(many.Growths, many.Growths[0])
	}
	long := l.offer(5)
	long.Growths[0].Proof = append(long.Growths[0].Proof, make([]tlog.Hash, 2000)...)
	for why, try := range map[string]func() Result{
		"is not signed by the log": func() Result { return w.sign("a", forged) },
		"another key than":         func() Result { return w.sign("a", forger.offer()) },
		"this version reads":       func() Result { return w.sign("a", huge) },
		"no head that":             func() Result { return w.sign("a", many) },
		"larger than":              func() Result { return w.sign("a", long) },
		"is that of the node a":    func() Result { return w.sign("b", l.offer()) },
		"no name of another":       func() Result { return w.sign("w", l.offer()) },
		"another node":             func() Result { return w.sign("../x", l.offer()) },
		"no key of a log":          func() Result { return w.sign("c", wire.Offer{Key: "x+1+y", Head: l.head()}) },
	} {
		r := try()
		assert.Contains(t, r.Answer.Why, why)
		assert.NotEmpty(t, r.Refused, why)
		assert.Nil(t, r.Found, why)
	}
	r := w.Cosign("a", []byte(strings.Repeat("[", 1<<16)), nil, time.Now())
	assert.NotEmpty(t, r.Refused)
	r = w.sign("a", l.offer(5), wire.Answer{Head: forger.head()}, wire.Answer{Head: "x"}, wire.Answer{Head: strings.Repeat("x", 1<<20)})
	assert.Empty(t, r.Answer.Why, "made up answers of others are no reason")
	files, err := os.ReadDir(filepath.Join(w.Witness.at))
	require.NoError(t, err)
	assert.Len(t, files, 1)
}

// TestKeysListed: with keys, nothing else counts, at first sight neither.
func TestKeysListed(t *testing.T) {
	l, m := newLog(t, "1").grow(5, "x"), newLog(t, "2").grow(5, "x")
	w := newNode(t, "w", l.key)
	assert.Empty(t, w.sign("a", l.offer()).Answer.Why)
	assert.Contains(t, w.sign("b", m.offer()).Refused, "not among keys")
}

// TestOldState: a witness whose files were restored from a copy, or lost but for its key, goes on from what it has signed, as
// far as the server has it.
func TestOldState(t *testing.T) {
	w, l := newNode(t, "w"), newLog(t, "1").grow(5, "x")
	w.sign("a", l.offer())
	file := filepath.Join(w.at, "a")
	old, err := os.ReadFile(file)
	require.NoError(t, err)
	last := w.sign("a", l.grow(9, "x").offer(5)).Answer
	fork := l.copy(7).grow(12, "y")
	for name, lose := range map[string]func() error{
		"restored": func() error { return os.WriteFile(file, old, 0o600) },
		"lost":     func() error { return os.Remove(file) },
	} {
		t.Run(name, func(t *testing.T) {
			w.Close()
			require.NoError(t, lose())
			w.open("w")
			r := w.sign("a", fork.offer(5, 9), last)
			assert.Equal(t, Forked, r.Kind)
			assert.EqualValues(t, 9, w.size(r, l))
			w.Close()
			require.NoError(t, lose())
			w.open("w")
			r = w.sign("a", l.copy(9).grow(20, "x").offer(9), last)
			assert.Empty(t, r.Answer.Why)
			assert.EqualValues(t, 20, w.size(r, l))
			w.Close()
			require.NoError(t, lose())
			w.open("w")
			assert.Contains(t, w.sign("a", newLog(t, "9").grow(3, "x").offer(), last).Answer.Why, "another", "a new key of the log is no way out")
			require.NoError(t, os.WriteFile(file, old, 0o600))
		})
	}
	w.Close()
	require.NoError(t, os.WriteFile(file, old[:20], 0o600))
	_, err = OpenWitness(w.dir, "w", nil)
	assert.ErrorContains(t, err, "restore it")
	w.open2(t)
}

func (n *node) open2(t *testing.T) {
	require.NoError(t, os.Remove(filepath.Join(n.at, "a")))
	n.open("w")
}

// TestFlood: a node that offers heads without end costs a witness two signatures a second.
func TestFlood(t *testing.T) {
	w, l := newNode(t, "w"), newLog(t, "1").grow(1, "x")
	signed := 0
	for i := range 100 {
		before := w.last("a")
		text, err := json.Marshal(l.grow(l.size+1, "x").offer(before))
		require.NoError(t, err)
		r := w.Cosign("a", text, nil, w.now.Add(time.Duration(i)*10*time.Millisecond))
		if w.last("a") > before {
			signed++
		}
		assert.Empty(t, r.Refused)
	}
	assert.LessOrEqual(t, signed, 3)
}

func (n *node) last(origin string) int64 {
	if l := n.logs[origin]; l != nil {
		return l.last.Size
	}
	return 0
}

// own is the origin's side, with a log on the disk.
func newOwn(t *testing.T, need int, keys ...string) (o *Own, log *audit.Log, dir string) {
	t.Helper()
	dir = t.TempDir()
	log, err := audit.Open(filepath.Join(dir, "audit"), audit.Options{})
	require.NoError(t, err)
	record(t, log, 5)
	require.NoError(t, log.Close())
	log, err = audit.Open(filepath.Join(dir, "audit"), audit.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = log.Close() })
	o, err = OpenOwn(dir, filepath.Join(dir, "audit"), "a", keys, need)
	require.NoError(t, err)
	t.Cleanup(o.Close)
	return o, log, dir
}

func record(t *testing.T, log *audit.Log, lines int) {
	t.Helper()
	for range lines {
		require.NoError(t, log.Record(context.Background(), audit.Event{Event: audit.KindDaemon}))
	}
}

// offerOf returns the offer of a log on the disk.
func offerOf(t *testing.T, dir string, from ...int64) (o wire.Offer) {
	t.Helper()
	signed, grown, err := audit.Growths(t.Context(), filepath.Join(dir, "audit"), from)
	require.NoError(t, err)
	key, err := os.ReadFile(filepath.Join(dir, "audit", "key.pub"))
	require.NoError(t, err)
	return wire.Offer{Key: strings.TrimSpace(string(key)), Head: string(signed), Growths: grown}
}

func answer(t *testing.T, a wire.Answer) []byte {
	t.Helper()
	text, err := json.Marshal(a)
	require.NoError(t, err)
	return text
}

// TestOwn: the signatures of two witnesses are one note with the head, which others verify by the keys alone. A signature for
// an old head, one of another key, and one that is made up count for nothing.
func TestOwn(t *testing.T) {
	o, log, dir := newOwn(t, 2)
	one, two, mallory := newNode(t, "one"), newNode(t, "two"), newNode(t, "one")
	first := one.sign("a", offerOf(t, dir)).Answer
	g := o.Take("one", answer(t, first))
	require.Empty(t, g.Refused)
	assert.Equal(t, one.Public(), g.Pinned)
	var shown wire.Heads
	o.Show(&shown)
	assert.Equal(t, []string{"one"}, shown.Signed)
	require.Empty(t, o.Take("two", answer(t, two.sign("a", offerOf(t, dir)).Answer)).Refused)
	o.Show(&shown)
	assert.Equal(t, []string{"one", "two"}, shown.Signed)

	text, err := os.ReadFile(filepath.Join(dir, state.Heads, Name))
	require.NoError(t, err)
	n, err := note.Open(text, note.VerifierList(one.own, two.own))
	require.NoError(t, err)
	assert.Len(t, n.Sigs, 2)

	assert.Contains(t, o.Take("one", answer(t, mallory.sign("a", offerOf(t, dir)).Answer)).Refused, "another key")
	forged := first
	forged.Head = strings.Replace(first.Head, "denied 0", "denied 1", 1)
	assert.NotEmpty(t, o.Take("one", answer(t, forged)).Refused)
	assert.NotEmpty(t, o.Take("one", []byte(strings.Repeat("x", 1<<20))).Refused)
	other := newLog(t, "x").grow(100, "x")
	assert.Contains(t, o.Take("one", answer(t, one.sign("b", other.offer()).Answer)).Refused, "no head of this log")

	// The next head: with one of two signatures the last one stays, and an old signature brings nothing.
	size := shown.Size
	record(t, log, 20)
	require.NoError(t, log.Close())
	require.Empty(t, o.Take("one", answer(t, first)).Refused)
	require.Empty(t, o.Take("one", answer(t, one.sign("a", offerOf(t, dir, size)).Answer)).Refused)
	o.Show(&shown)
	assert.Equal(t, size, shown.Size)
	o.Close()
	o, err = OpenOwn(dir, filepath.Join(dir, "audit"), "a", nil, 2)
	require.NoError(t, err)
	defer o.Close()
	o.Show(&shown)
	assert.Equal(t, []string{"one", "two"}, shown.Signed, "the next daemon has it")
	for _, w := range []*node{one, two} {
		require.Empty(t, o.Take(w.node, answer(t, w.sign("a", offerOf(t, dir, size)).Answer)).Refused)
	}
	o.Show(&shown)
	assert.Greater(t, shown.Size, size)
	assert.Len(t, shown.Signed, 2)
}

// TestOwnRolledBack: a node whose log was restored from a copy, or written anew, learns it from what others have signed.
func TestOwnRolledBack(t *testing.T) {
	o, log, dir := newOwn(t, 1)
	require.NoError(t, log.Close())
	w := newNode(t, "w")
	copied := filepath.Join(t.TempDir(), "audit")
	require.NoError(t, os.CopyFS(copied, os.DirFS(filepath.Join(dir, "audit"))))
	log, err := audit.Open(filepath.Join(dir, "audit"), audit.Options{})
	require.NoError(t, err)
	record(t, log, 20)
	require.NoError(t, log.Close())
	last := w.sign("a", offerOf(t, dir)).Answer
	require.Empty(t, last.Why)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "audit")))
	require.NoError(t, os.Rename(copied, filepath.Join(dir, "audit")))
	g := o.Take("w", answer(t, last))
	assert.Empty(t, g.Found, "the file of the head may be old for a moment")
	assert.Contains(t, o.Take("w", answer(t, last)).Found, "rolled back")
	assert.Empty(t, o.Take("w", answer(t, last)).Found, "once")
}

// FuzzOffer: no offer and no answer of another has a witness sign what the log has not signed.
func FuzzOffer(f *testing.F) {
	f.Add([]byte(`{"key":"x","head":"y"}`), []byte(`{"head":"z"}`))
	w, err := OpenWitness(f.TempDir(), "w", nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, offer, seen []byte) {
		if r := w.Cosign("a", offer, [][]byte{seen}, time.Now()); r.Answer.Head != "" {
			t.Fatal("signed")
		}
	})
}
