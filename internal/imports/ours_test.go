package imports

import (
	"testing"

	kit "github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/scope/catalog"
)

// ours returns the tools that scopefs has.
func ours(testing.TB) catalog.Tools { return kit.Tools() }
