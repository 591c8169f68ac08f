package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRelOf(t *testing.T) {
	for word, want := range map[string]string{
		"a": "a", "./a/": "a", "a/../b": "b", ".": "", "/workspace": "", "/workspace/": "", "/workspace/a/b": "a/b", "a\nb\xff": "a\nb\xff",
	} {
		rel, err := relOf(word)
		require.NoError(t, err, word)
		assert.Equal(t, want, rel, word)
	}
	for _, word := range []string{"", "..", "../a", "a/../..", "/", "/etc/passwd", "/workspaces/a", "/workspace/../etc"} {
		_, err := relOf(word)
		assert.Error(t, err, word)
	}
}
