package daemon

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/tree"
	"github.com/scopefs/scopefs/integration/harness"
)

// testWitness is a witness of one log on another host, as c2sp.org/tlog-witness has it.
type testWitness struct {
	key ed25519.PrivateKey
	log string // the file of the log's public key

	mu      sync.Mutex
	last    tree.Head // that it has signed
	refused int       // heads of another history
}

const witnessName = "witness.test/w"

func newTestWitness(t *testing.T, log string) *testWitness {
	_, key, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	return &testWitness{key: key, log: log}
}

// public returns the type of the witness's key and the key.
func (w *testWitness) public() []byte {
	return append([]byte{4}, w.key.Public().(ed25519.PublicKey)...)
}

func (w *testWitness) hash() []byte {
	sum := sha256.Sum256(append([]byte(witnessName+"\n"), w.public()...))
	return sum[:4]
}

func (w *testWitness) vkey() string {
	return fmt.Sprintf("%s+%x+%s", witnessName, w.hash(), base64.StdEncoding.EncodeToString(w.public()))
}

func (w *testWitness) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	head, signed, _ := bytes.Cut(body, []byte("\n\n"))
	lines := strings.Split(string(head), "\n")
	var old int64
	_, err := fmt.Sscanf(lines[0], "old %d", &old)
	public, errKey := os.ReadFile(w.log)
	verifier, errVerifier := note.NewVerifier(strings.TrimSpace(string(public)))
	if r.URL.Path != "/add-checkpoint" || err != nil || errKey != nil || errVerifier != nil {
		http.Error(out, "bad", http.StatusBadRequest)
		return
	}
	h, err := tree.OpenHead(signed, verifier)
	if err != nil {
		http.Error(out, err.Error(), http.StatusForbidden)
		return
	}
	var proof tlog.TreeProof
	for _, line := range lines[1:] {
		one, _ := base64.StdEncoding.DecodeString(line)
		proof = append(proof, tlog.Hash(one))
	}
	switch {
	case old != w.last.Size, h.Size == old && h.Root != w.last.Root:
		out.Header().Set("Content-Type", "text/x.tlog.size")
		out.WriteHeader(http.StatusConflict)
		fmt.Fprintf(out, "%d\n", w.last.Size)
		return
	case old > 0 && old != h.Size && tlog.CheckTree(proof, h.Size, h.Root, old, w.last.Root) != nil:
		w.refused++
		http.Error(out, "another history", http.StatusUnprocessableEntity)
		return
	}
	w.last = h
	n, _ := note.Open(signed, note.VerifierList(verifier))
	now := uint64(time.Now().Unix())
	sig := binary.BigEndian.AppendUint64(w.hash(), now)
	sig = append(sig, ed25519.Sign(w.key, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", now, n.Text))...)
	fmt.Fprintf(out, "— %s %s\n", witnessName, base64.StdEncoding.EncodeToString(sig))
}

func (w *testWitness) seen() (size int64, refused int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last.Size, w.refused
}

// TestWitness: a witness on another host signs heads that grow from each other, also after a restart, and scopefs audit
// verify takes them. Of a log that was written anew with the log's own key it signs none, and the log says so.
func TestWitness(t *testing.T) {
	t.Parallel()
	h := harness.LayOut(t, map[string]string{"a": ""})
	dir := h.Base + "/state/audit"
	w := newTestWitness(t, dir+"/key.pub")
	server := httptest.NewServer(w)
	defer server.Close()
	h.Put("scopefs.yaml", fmt.Sprintf("log: {anchors: [{name: far, every: 1s, witness: '%s', key: '%s'}]}\n", server.URL, w.vkey()))
	h.Start()
	signed := func(more int64) {
		t.Helper()
		before, _ := w.seen()
		h.Must("call", "--agent", "a", "write_file", "path=f", "content=x")
		h.Eventually("the witness has signed", func() bool { size, _ := w.seen(); return size > before+more })
	}
	signed(0)
	signed(0)
	h.Eventually("it is recorded", func() bool {
		return h.Recorded("", audit.Event{Event: audit.KindAudit, Outcome: audit.OutcomeAnchored})
	})
	head := h.Base + "/state/heads/far"
	h.Eventually("the head is kept", func() bool {
		_, _, code := h.Try("audit", "verify", "--checkpoint", head, "--key", dir+"/key.pub")
		return code == 0
	})
	said, _, code := h.Try("audit", "verify")
	assert.Zero(t, code)
	assert.Contains(t, said, "witness: far, "+w.vkey()+" has signed up to event ")
	h.Must("audit", "verify", "--witness", w.vkey())
	h.Must("audit", "prove", "1")
	h.Stop()
	h.Start() // it does not know what the witness has
	signed(0)
	size, refused := w.seen()
	assert.Zero(t, refused)
	h.Stop()

	// Whoever has the log's key writes it anew.
	names, err := filepath.Glob(dir + "/*")
	require.NoError(t, err)
	for _, name := range names {
		if !strings.HasPrefix(filepath.Base(name), "key") {
			require.NoError(t, os.RemoveAll(name))
		}
	}
	h.Start()
	for range size {
		h.Must("call", "--agent", "a", "write_file", "path=f", "content=y")
	}
	h.Eventually("the witness refuses", func() bool { _, refused := w.seen(); return refused > 0 })
	h.Eventually("the log says so", func() bool {
		return strings.Contains(h.Must("audit", "--op", "", "--json"), "another history of this log")
	})
	now, _ := w.seen()
	assert.Equal(t, size, now)
	_, _, code = h.Try("audit", "verify", "--checkpoint", head, "--key", dir+"/key.pub")
	assert.Equal(t, 1, code)
	_, wrong, code := h.Try("audit", "verify", "--witness", w.vkey())
	assert.Equal(t, 1, code)
	assert.Contains(t, wrong, "broken: "+head)
	_, wrong, code = h.Try("audit", "prove", "1")
	assert.Equal(t, 1, code, "the head that the witness has signed is of other lines")
	assert.Contains(t, wrong, "does not lead to the head")
}
