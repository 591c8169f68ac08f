package tools

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSchemasAreShared: each session makes its tools, and all use one schema of a type.
func TestSchemasAreShared(t *testing.T) {
	type in struct {
		Path string `json:"path"`
	}
	type out struct {
		Said string `json:"said"`
	}
	made := func() Tool {
		tool, err := New("a", "about", Hints{}, func(context.Context, Env, in) (out, error) { return out{}, nil })
		require.NoError(t, err)
		return tool
	}
	one, other := made(), made()
	assert.Same(t, one.Input, other.Input)
	assert.Same(t, one.Output, other.Output)
	text, err := SchemaText(one.Input)
	require.NoError(t, err)
	again, err := SchemaText(other.Input)
	require.NoError(t, err)
	assert.Same(t, &text[0], &again[0])
}
