package tree

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// TestProofTerminal: a proof of a log whose owner is not trusted controls no terminal, and shows no two lines as one.
func TestProofTerminal(t *testing.T) {
	private, public, err := note.GenerateKey(rand.Reader, "log")
	require.NoError(t, err)
	signer, err := note.NewSigner(private)
	require.NoError(t, err)
	for text, bad := range map[string]bool{
		`{"seq":1,"event":"file"}`: false, `{"seq":1,"event":"file"}` + "\n": false, `{"seq":1,"event":"é"}`: false,
		`{"seq":1,"event":"` + "\x1b[2J" + `"}`: true, `{"seq":1}` + "\n" + `{"seq":2}`: true, `{"seq":1}` + "\r" + `{"seq":2}` + "\n": true,
		`{"seq":1,"event":"` + "\u009b2J" + `"}`: true,
	} {
		head, err := Head{Size: 1, Root: tlog.RecordHash([]byte(text))}.Sign(signer)
		require.NoError(t, err)
		_, err = Proof{Key: public, Head: string(head), Events: []ProvedLine{{Line: text}}}.Check(public)
		if bad {
			require.ErrorContains(t, err, "control characters", "%q", text)
		} else {
			require.NoError(t, err, "%q", text)
		}
	}
}

// FuzzProof changes the proof of two lines. Whatever is made of it, what it proves to who has the key is lines of the log, at
// their places, below its head.
func FuzzProof(f *testing.F) {
	private, public, err := note.GenerateKey(rand.Reader, "log")
	require.NoError(f, err)
	signer, err := note.NewSigner(private)
	require.NoError(f, err)
	var stored []tlog.Hash
	hashes := tlog.HashReaderFunc(func(indexes []int64) (found []tlog.Hash, err error) {
		for _, i := range indexes {
			found = append(found, stored[i])
		}
		return found, nil
	})
	var lines []string
	for i := range int64(7) {
		lines = append(lines, fmt.Sprintf(`{"seq":%d}`+"\n", i+1))
		more, err := tlog.StoredHashes(i, []byte(lines[i]), hashes)
		require.NoError(f, err)
		stored = append(stored, more...)
	}
	root, err := tlog.TreeHash(7, hashes)
	require.NoError(f, err)
	head, err := Head{Size: 7, Root: root}.Sign(signer)
	require.NoError(f, err)
	proof := Proof{Key: "KEY", Head: "HEAD"}
	for _, i := range []int64{2, 6} {
		path, err := tlog.ProveRecord(7, i, hashes)
		require.NoError(f, err)
		proof.Events = append(proof.Events, ProvedLine{Line: lines[i], Index: i, Path: path})
	}
	seed, err := json.Marshal(proof)
	require.NoError(f, err)
	f.Add(seed)
	f.Fuzz(func(t *testing.T, text []byte) {
		var p Proof
		if json.Unmarshal(text, &p) != nil {
			return
		}
		if p.Head == "HEAD" { // the key is another one each time
			p.Head = string(head)
		}
		if _, err := p.Check(public); err != nil {
			return
		}
		require.NotEmpty(t, p.Events)
		for _, e := range p.Events {
			assert.Equal(t, lines[e.Index], e.Line)
		}
	})
}
