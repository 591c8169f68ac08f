package imports

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	kit "github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/scope/catalog"
)

var ourTools = sync.OnceValues(kit.Tools)

// ours returns the tools that scopefs has.
func ours(t testing.TB) catalog.Tools {
	all, err := ourTools()
	require.NoError(t, err)
	return all
}
