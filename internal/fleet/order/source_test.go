package order

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"

	"github.com/scopefs/scopefs/scope"
)

func TestSource(t *testing.T) {
	ada, public, err := NewKey("ada")
	require.NoError(t, err)
	bob, _, err := NewKey("bob")
	require.NoError(t, err)
	twin, _, err := NewKey("ada")
	require.NoError(t, err)
	key, err := ParseKey(public)
	require.NoError(t, err)
	s := Source{Name: "git", Path: "agents.d", Commit: "x<y", Versions: map[scope.ID][]int64{"b": {1, 2}}}
	signed, err := s.Sign(ada)
	require.NoError(t, err)
	for private, keys := range map[string][]string{ada: nil, bob: {public}} {
		got, err := OpenSource(signed, private, keys)
		require.NoError(t, err)
		assert.Equal(t, s, got)
	}
	for private, text := range map[string]string{bob: string(signed), twin: string(signed), ada: strings.Replace(string(signed), "agents.d", "agents.e", 1), "": string(signed)} {
		_, err := OpenSource([]byte(text), private, nil)
		assert.ErrorContains(t, err, "no trusted key")
	}
	d, err := Definition{Name: "b", Version: 1, Text: "x"}.Sign(ada)
	require.NoError(t, err)
	assert.True(t, Ours(d, ada, nil))
	assert.False(t, Ours(d, bob, nil))
	_, err = OpenSource(d, ada, nil)
	assert.ErrorContains(t, err, "no source")
	_, _, err = OpenDefinition(signed, []note.Verifier{key})
	assert.Error(t, err)
	s.Path = strings.Repeat("x", MaxDefinition)
	_, err = s.Sign(ada)
	assert.Error(t, err)
}
