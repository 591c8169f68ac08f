package tree

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"
)

// logKey returns the keys of a new log.
func logKey(t *testing.T, id string) (note.Signer, note.Verifier) {
	t.Helper()
	private, public, err := note.GenerateKey(rand.Reader, OriginPrefix+id)
	require.NoError(t, err)
	signer, err := note.NewSigner(private)
	require.NoError(t, err)
	key, err := note.NewVerifier(public)
	require.NoError(t, err)
	return signer, key
}

// TestEachHead: heads are found among what receivers write around them, and nothing that the key has not signed is taken for one.
func TestEachHead(t *testing.T) {
	signer, key := logKey(t, "1")
	foreign, _ := logKey(t, "2")
	forger, _ := logKey(t, "1")
	sign := func(s note.Signer, size int64) string {
		signed, err := Head{Size: size, Counts: Counts{Denied: 3}}.Sign(s)
		require.NoError(t, err)
		return string(signed)
	}
	head := func(size int64) string { return sign(signer, size) }
	indented := "    " + strings.ReplaceAll(strings.TrimSpace(head(4)), "\n", "\r\n    ")
	line := func(signed string) string {
		return "<110>1 2026-11-26T07:00:00Z h scopefs - - - head of lines: " + AsLine([]byte(signed)) + " #012\n"
	}
	cut := head(5)
	for name, c := range map[string]struct {
		text  string
		sizes string
		kept  Kept
		wrong string
	}{
		"one":           {head(1), "1@1", Kept{Heads: 1}, ""},
		"none":          {"scopefs.log/1\nabc\n", "", Kept{}, ""},
		"several":       {head(1) + "\n" + head(2) + "\n\n" + head(3), "1@1 2@8 3@16", Kept{Heads: 3}, ""},
		"without space": {head(1) + head(2), "1@1 2@7", Kept{Heads: 2}, ""},
		"git log": {"commit 1\nAuthor: x\n\n    head of scopefs.log/1\n\n" + indented + "\n\ncommit 2\n\n" + indented, "4@6 4@15",
			Kept{Heads: 2}, ""},
		"syslog":        {"Nov 26 boot\n" + line(head(7)) + line(head(8)) + line(sign(foreign, 9)), "7@2 8@3", Kept{Heads: 2, Others: 1}, ""},
		"of another":    {sign(foreign, 1) + head(2), "2@7", Kept{Heads: 1, Others: 1}, ""},
		"forged":        {head(2) + sign(forger, 3), "2@1", Kept{Heads: 1}, "line 7: a head of this log is not signed"},
		"forged line":   {line(sign(forger, 3)), "", Kept{}, "line 1: a head of this log is not signed"},
		"changed":       {strings.Replace(head(2), "denied 3", "denied 0", 1), "", Kept{}, "line 1: a head of this log is not signed"},
		"long lines":    {strings.Repeat("x", 200<<10) + "\n" + head(2) + strings.Repeat("y", 200<<10), "2@2", Kept{Heads: 1}, ""},
		"endless head":  {"scopefs.log/1\n5\n" + strings.Repeat("a\n", 100) + head(2), "2@103", Kept{Heads: 1, Cut: 1}, ""},
		"cut and whole": {cut[:len(cut)-20] + "\n" + cut, "5@7", Kept{Heads: 1, Cut: 1}, ""},
		"witnessed":     {head(2) + "— witness.example/w AAAA\n" + "\n" + head(3), "2@1 3@9", Kept{Heads: 2}, ""},
		"NUL":           {"\x00\x00" + "\n" + head(2), "2@2", Kept{Heads: 1}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var sizes []string
			kept, err := EachHead(strings.NewReader(c.text), key, func(line int64, h Head, signed string) {
				sizes = append(sizes, fmt.Sprintf("%d@%d", h.Size, line))
			})
			assert.Equal(t, c.sizes, strings.Join(sizes, " "))
			if c.wrong != "" {
				require.ErrorContains(t, err, c.wrong)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.kept, kept)
		})
	}
	for at := range len(cut) { // a writer that was killed
		for _, text := range []string{cut[:at], line(cut)[:len(line(cut))-1-at]} {
			_, err := EachHead(strings.NewReader(text+"\n"+head(6)), key, func(int64, Head, string) {})
			require.NoError(t, err, text)
		}
	}
}
