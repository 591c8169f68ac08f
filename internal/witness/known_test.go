package witness

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"
)

// TestKnown: what counts is a signature of the very head by the very key, once.
func TestKnown(t *testing.T) {
	private, public, err := note.GenerateKey(rand.Reader, "scopefs.log/1")
	require.NoError(t, err)
	log, err := note.NewSigner(private)
	require.NoError(t, err)
	signer := func(name string) *Signer {
		private, err := NewKey(name)
		require.NoError(t, err)
		s, err := NewSigner(private)
		require.NoError(t, err)
		return s
	}
	head := func(size int, by ...note.Signer) string {
		text, err := note.Sign(&note.Note{Text: fmt.Sprintf("scopefs.log/1\n%d\nroot\n", size)}, append(by, log)...)
		require.NoError(t, err)
		return string(text)
	}
	sig := func(signed string, by note.Signer) string {
		for line := range strings.Lines(signed) {
			if strings.HasPrefix(line, "— "+by.Name()+" ") {
				return line
			}
		}
		t.Fatal("no signature")
		return ""
	}
	a, b, other := signer("w/a"), signer("w/b"), signer("w/a")
	twin := &Signer{"w/twin", a.key}
	forged := func(name string, of *Signer) string {
		raw := make([]byte, hashSize+timeSize+64)
		hash := of.KeyHash()
		raw[0], raw[1], raw[2], raw[3] = byte(hash>>24), byte(hash>>16), byte(hash>>8), byte(hash)
		return "— " + name + " " + base64.StdEncoding.EncodeToString(raw) + "\n"
	}
	late := head(7, a)
	for name, c := range map[string]struct {
		head   string
		signed string // "a", "b"
	}{
		"both":                     {head(7, a, b), "ab"},
		"one":                      {head(7, b), "b"},
		"none":                     {head(7), ""},
		"another key of the name":  {head(7, other), ""},
		"twice":                    {head(7, a) + sig(head(7, a), a), "a"},
		"forged":                   {head(7) + forged("w/a", a), ""},
		"forged beside a true one": {head(7, b) + forged("w/a", a), "b"},
		"of another head":          {head(7) + sig(head(8, a), a), ""},
		"of another name":          {head(7) + strings.Replace(sig(late, a), "w/a", "w/b", 1), ""},
		"the head was changed":     {strings.Replace(late, "\n7\n", "\n8\n", 1), ""},
		"a twin":                   {head(7, twin), ""},
		"a control character":      {head(7, b) + strings.Replace(sig(late, a), "w/a", "w/\x1b[2J", 1), ""},
		"no signature line":        {head(7, b) + "signed, w/a\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var all Keys
			for _, key := range []string{a.Public(), b.Public(), a.Public(), twin.Public()} {
				require.NoError(t, all.Add("", key))
			}
			require.Len(t, all, 2, "two public keys")
			all.Signed([]byte(c.head), 7, 70)
			signed := ""
			for i, k := range all {
				if k.Lines == 7 && k.Event == 70 && !k.Time.IsZero() {
					signed += string("ab"[i])
				}
			}
			assert.Equal(t, c.signed, signed)
			n, of := all.Count(true)
			assert.Equal(t, []int{len(c.signed), 2}, []int{n, of})
		})
	}
	var three Keys
	for i, key := range []*Signer{a, b, other} {
		require.NoError(t, three.Add("", key.Public()))
		three[i].Event = uint64(10 * i)
	}
	three[0].Event, three[2].Event = 20, 0
	for k, want := range []uint64{0, 20, 10, 0, 0} {
		assert.Equal(t, want, three.Quorum(k), k)
	}
	var all Keys
	require.NoError(t, all.Add("node", a.Public()))
	all.Signed([]byte(head(7, a)), 7, 70)
	all.Signed([]byte(head(5, a)), 5, 50)
	all.Signed([]byte(head(9)), 9, 90)
	assert.EqualValues(t, 70, all[0].Event, "the newest that it has signed")
	n, of := all.Count(true)
	assert.Equal(t, []int{0, 0}, []int{n, of}, "nobody gave the key")
	require.Error(t, all.Add("", public), "the key of a log is none of a witness")
	require.Error(t, all.Add("", strings.Replace(a.Public(), "w/a", "w/c", 1)), "the hash is of another name")
}
