// Package daemon tests the daemon through crashes, restarts, floods and full disks, and its log.
package daemon

import (
	"testing"

	"github.com/scopefs/scopefs/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// args are the arguments of a call.
type args = map[string]any
