package stores

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope/agents"
)

// TestReportMakesNothing: to look at stores makes no file.
func TestReportMakesNothing(t *testing.T) {
	state := t.TempDir()
	s := New(agents.Stores{KV: &agents.KVStore{}, SQL: &agents.SQLStore{}, Messages: &agents.MessagesStore{}}, state, Host{})
	list := s.Report(t.Context(), nil)
	require.Len(t, list, 3)
	for _, one := range list {
		assert.Empty(t, one.Error, one.Name)
	}
	require.NoError(t, s.Close())
	left, err := os.ReadDir(state)
	require.NoError(t, err)
	assert.Empty(t, left)
}
