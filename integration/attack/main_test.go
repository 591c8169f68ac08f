// Package attack has the attackers: processes that try to reach what their agent may not.
package attack

import (
	"testing"

	"github.com/scopefs/scopefs/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
