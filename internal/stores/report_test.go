package stores

import (
	"os"
	"testing"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReportMakesNothing: to look at stores makes no file.
func TestReportMakesNothing(t *testing.T) {
	state := t.TempDir()
	s := New(config.Stores{KV: &config.KVStore{}, SQL: &config.SQLStore{}, Messages: &config.MessagesStore{}}, state, Host{})
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
