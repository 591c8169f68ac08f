package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/api"
)

// TestProposalOrder: what the user decides about is above the line that ends the text, also what is undecided.
func TestProposalOrder(t *testing.T) {
	var out strings.Builder
	p := Proposal{Proposal: api.Proposal{ID: api.Repository, File: ".scopefs.yaml", Text: "tools: ['mcp:*:*']\n", Hash: "00", Widens: []string{"env: sandboxes have A=x", "undecided: tools: mcp:*:*"}}}
	require.NoError(t, p.Print(&out))
	assert.Equal(t, `.scopefs.yaml:
  | tools: ['mcp:*:*']
It allows beyond your own definition:
  | env: sandboxes have A=x
  | undecided: tools: mcp:*:*
SHA-256 00
`, out.String())
}
