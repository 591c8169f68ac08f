package library

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"

	"github.com/scopefs/scopefs/internal/fleet/order"
	"github.com/scopefs/scopefs/scope"
)

// signer is an operator.
type signer struct {
	private string
	public  note.Verifier
}

func newSigner(t *testing.T, name string) signer {
	t.Helper()
	private, public, err := order.NewKey(name)
	require.NoError(t, err)
	key, err := order.ParseKey(public)
	require.NoError(t, err)
	return signer{private, key}
}

func (s signer) sign(t *testing.T, d order.Definition) []byte {
	t.Helper()
	signed, err := d.Sign(s.private)
	require.NoError(t, err)
	return signed
}

// laid returns what a library has laid out, by name.
func laid(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(dir, agentsDir))
	require.NoError(t, err)
	got := map[string]string{}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, agentsDir, f.Name()))
		require.NoError(t, err)
		got[strings.TrimSuffix(f.Name(), ".md")] = string(text)
	}
	return got
}

func take(t *testing.T, l *Library, signed []byte) {
	t.Helper()
	h, err := l.Check(signed, time.Now())
	require.NoError(t, err)
	require.NotNil(t, h)
	require.NoError(t, l.Take(h))
	require.NoError(t, l.Lay())
}

// TestLibrary: the last version holds, whatever else is signed, and an older one does not come back: neither after a removal, nor
// after the key or the node's name was another one meanwhile.
func TestLibrary(t *testing.T) {
	ada, bob := newSigner(t, "ada"), newSigner(t, "bob")
	at, now := t.TempDir(), time.Now().UnixMilli()
	open := func(dir, node string, trust ...note.Verifier) *Library {
		t.Helper()
		l, err := Open(filepath.Join(at, dir), node, trust)
		require.NoError(t, err)
		return l
	}
	first := ada.sign(t, order.Definition{Name: "a", Version: now, Text: "first"})
	second := ada.sign(t, order.Definition{Name: "a", Version: now + 1, Nodes: []string{"web-*"}, Text: "second"})
	third := ada.sign(t, order.Definition{Name: "a", Version: now + 2, Removed: true})
	older := func(l *Library) {
		t.Helper()
		for _, signed := range [][]byte{first, second} {
			_, err := l.Check(signed, time.Now())
			assert.ErrorContains(t, err, "is not newer")
		}
	}

	l := open("x", "web-1", ada.public)
	take(t, l, first)
	take(t, l, ada.sign(t, order.Definition{Name: "b", Version: now, Text: "b"}))
	assert.Equal(t, map[string]string{"a": "first", "b": "b"}, laid(t, l.dir))
	take(t, l, second)
	same, err := l.Check(second, time.Now())
	assert.NoError(t, err)
	assert.Nil(t, same)

	l = open("y", "db-1", ada.public) // the node has another name
	assert.True(t, l.Changed())
	assert.Equal(t, map[string]string{"b": "b"}, laid(t, l.dir))
	assert.NoDirExists(t, filepath.Join(at, "x"))
	l = open("z", "web-1", bob.public)
	assert.Empty(t, laid(t, l.dir))
	_, err = l.Check(first, time.Now())
	assert.ErrorContains(t, err, "no trusted key")
	l = open("x", "web-1", ada.public)
	assert.Equal(t, map[string]string{"a": "second", "b": "b"}, laid(t, l.dir))
	require.False(t, open("x", "web-1", ada.public).Changed())
	take(t, l, third)
	assert.Equal(t, map[string]string{"b": "b"}, laid(t, l.dir))
	older(l)
	older(open("x", "web-1", ada.public))

	require.NoError(t, os.WriteFile(filepath.Join(at, signedDir, "b"), []byte("damaged"), 0o600))
	_, err = Open(filepath.Join(at, "x"), "web-1", []note.Verifier{ada.public})
	assert.ErrorContains(t, err, "restore it, or remove it")
}

// TestTry: what may come is laid out elsewhere, and nothing holds that does not load.
func TestTry(t *testing.T) {
	ada := newSigner(t, "ada")
	l, err := Open(filepath.Join(t.TempDir(), "x"), "n", []note.Verifier{ada.public})
	require.NoError(t, err)
	take(t, l, ada.sign(t, order.Definition{Name: "a", Version: 1, Text: "a"}))
	var next []*Held
	for name, text := range map[scope.ID]string{"b": "b", "c": "c"} {
		h, err := l.Check(ada.sign(t, order.Definition{Name: name, Version: 1, Text: text}), time.Now())
		require.NoError(t, err)
		next = append(next, h)
	}
	gone, err := l.Check(ada.sign(t, order.Definition{Name: "a", Version: 2, Removed: true}), time.Now())
	require.NoError(t, err)
	no := errors.New("no")
	wrong, err := l.Try(append(next, gone), func(dir string) (map[scope.ID]error, error) {
		assert.Equal(t, map[string]string{"b": "b", "c": "c"}, laid(t, dir))
		return map[scope.ID]error{"a": no, "b": no}, nil
	})
	require.NoError(t, err)
	assert.Equal(t, map[scope.ID]error{"b": no}, wrong)
	assert.Equal(t, map[string]string{"a": "a"}, laid(t, l.dir))
	assert.NoDirExists(t, filepath.Join(l.at, tryDir))
}
