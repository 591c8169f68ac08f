package tree

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/tlog"
)

const salted = `{"seq":7,"time":"2026-01-02T03:04:05.678Z","salt":"AAECAwQFBgcICQoL","event":"file","agent":"a","op":"sha256:","path":"b\"\\","verdict":"deny","rule":"**/x: hide","context":[{"scope":"s","messages":1,"bytes":2,"hash":"h"}],"detail":"d"}`

func TestLeaf(t *testing.T) {
	var l Leaf
	text, open := l.Commit([]byte(salted))
	assert.Equal(t, tlog.RecordHash([]byte(text)), l.Hash([]byte(salted)))
	assert.Equal(t, map[string]string{"path": `b\"\\`, "rule": "**/x: hide", "detail": "d"}, values(open))
	assert.NotContains(t, text, "AAECAwQFBgcICQoL")
	assert.NotContains(t, text, "hide")
	assert.True(t, strings.HasSuffix(text, "}\n"))

	line, redacted, err := Open(text, open)
	require.NoError(t, err)
	assert.Empty(t, redacted)
	var was, is map[string]any
	require.NoError(t, json.Unmarshal([]byte(salted), &was))
	require.NoError(t, json.Unmarshal([]byte(line), &is))
	delete(was, "salt")
	delete(is, "salted")
	assert.Equal(t, was, is)

	delete(open, "path")
	line, redacted, err = Open(text, open)
	require.NoError(t, err)
	assert.Equal(t, []string{"path"}, redacted)
	assert.Contains(t, line, `"rule":"**/x: hide"`)
	assert.Contains(t, line, `"path":"sha256:`)

	// A line without a salt is hashed as it is.
	for _, old := range []string{"", "x", strings.Replace(salted, `"salt"`, `"nonce"`, 1), strings.Replace(salted, "AAEC", "AAE", 1), strings.Replace(salted, "AAE", `\"E`, 1)[1:]} {
		text, open := l.Commit([]byte(old))
		assert.Equal(t, old, text)
		assert.Nil(t, open)
		assert.Equal(t, tlog.RecordHash([]byte(old)), l.Hash([]byte(old)))
	}
}

func values(open map[string]Opening) map[string]string {
	all := map[string]string{}
	for field, o := range open {
		all[field] = o.Value
	}
	return all
}

// TestLeafForged shows other values than those of the line.
func TestLeafForged(t *testing.T) {
	var l Leaf
	text, open := l.Commit([]byte(salted))
	fake := Opening{"fake", make([]byte, keySize)}
	commitment := commitPrefix + string(l.appendHash(nil, l.commit(fake.Key, "op", []byte(fake.Value))))
	ofAgent, _ := l.Commit([]byte(strings.Replace(salted, `"op":"sha256:"`, `"op":"`+commitment+`"`, 1)))
	pathOf := commitPrefix + string(l.appendHash(nil, l.commit(fake.Key, "path", []byte(fake.Value))))
	old := strings.Replace(strings.Replace(salted, `"salt"`, `"nonce"`, 1), `b\"\\`, pathOf, 1)
	for name, forged := range map[string]struct {
		text  string
		shown map[string]Opening
	}{
		"another value":                          {text, map[string]Opening{"path": {"c", open["path"].Key}}},
		"another key":                            {text, map[string]Opening{"path": {open["path"].Value, open["rule"].Key}}},
		"the value of another field":             {text, map[string]Opening{"path": open["rule"], "rule": open["path"]}},
		"a field that the line has not":          {text, map[string]Opening{"target": open["path"]}},
		"a field without a commitment":           {ofAgent, map[string]Opening{"op": fake}},
		"a commitment that an agent chose":       {old, map[string]Opening{"path": fake}},
		"the same, of a line that was committed": {old + "\n", map[string]Opening{"rule": fake}},
		"a value moved into its key":             {text, map[string]Opening{"path": {"", append(open["path"].Key, `path`+"\n"+open["path"].Value...)}}},
		"no such field":                          {text, map[string]Opening{"": fake}},
	} {
		_, _, err := Open(forged.text, forged.shown)
		require.ErrorIs(t, err, ErrOpening, name)
	}
	swapped := strings.NewReplacer(`"path":"sha256`, `"rule":"sha256`, `"rule":"sha256`, `"path":"sha256`).Replace(text)
	_, _, err := Open(swapped, open)
	require.ErrorIs(t, err, ErrOpening)
}

// TestLeafGuessed guesses a short path by what a redacted proof has.
func TestLeafGuessed(t *testing.T) {
	var l Leaf
	text, open := l.Commit([]byte(strings.Replace(salted, `b\"\\`, "7", 1)))
	require.Equal(t, "7", open["path"].Value)
	delete(open, "path")
	_, after, _ := strings.Cut(text, `"salted":"`)
	seeds := [][]byte{nil, make([]byte, keySize), []byte(after[:43])}
	for _, o := range open {
		seeds = append(seeds, o.Key)
	}
	for _, seed := range seeds {
		derived := sha256.Sum256(l.of("path", seed))
		for _, key := range [][]byte{seed, derived[:keySize]} {
			for guess := range 10 {
				_, _, err := Open(text, map[string]Opening{"path": {fmt.Sprint(guess), key}})
				require.Error(t, err)
			}
		}
	}
}

// FuzzLeaf checks that a line has one committed form, that no other line has it, and that its values can be shown.
func FuzzLeaf(f *testing.F) {
	f.Add(salted, 0, byte(1))
	for i := range len(salted) {
		f.Add(salted, i, byte(1))
		f.Add(salted, i, byte('"'^salted[i]))
		f.Add(salted, i, byte('\\'^salted[i]))
	}
	f.Add(`{"seq":7,"time":"","salt":"0123456789abcdef"`, 1, byte(2))
	f.Add(`{"seq":7,"time":"","salt":"0123456789abcdef","path":"x`, 1, byte(2))
	f.Fuzz(func(t *testing.T, line string, at int, flip byte) {
		if strings.Contains(line, "\n") {
			return
		}
		var l Leaf
		text, open := l.Commit([]byte(line))
		require.Equal(t, tlog.RecordHash([]byte(text)), l.Hash([]byte(line)))
		require.Equal(t, open != nil, strings.HasSuffix(text, "\n"))
		if open != nil {
			again, _ := l.Commit([]byte(strings.TrimSuffix(text, "\n")))
			require.NotEqual(t, text, again, "the committed form is no line of its own")
		}
		if at < 0 || at >= len(line) || flip == 0 {
			return
		}
		other := []byte(line)
		if other[at] ^= flip; other[at] == '\n' {
			return
		}
		changed, _ := l.Commit(other)
		require.NotEqual(t, text, changed)
	})
}

func BenchmarkLeaf(b *testing.B) {
	line := []byte(`{"seq":1234567,"time":"2026-11-26T07:33:11.123456789Z","salt":"AAECAwQFBgcICQoL","event":"file","agent":"research-01","session":"01J9Z","op":"open","path":"reference/notes/today77.md","verdict":"allow","pid":4242,"uid":1000}`)
	b.Run("whole", func(b *testing.B) {
		for b.Loop() {
			tlog.RecordHash(line)
		}
	})
	b.Run("committed", func(b *testing.B) {
		var l Leaf
		for b.Loop() {
			l.Hash(line)
		}
	})
}
