// Package view tests what clients of a mounted view see: POSIX, coherence with the host, reloads.
package view

import (
	"os"
	"testing"

	"github.com/scopefs/scopefs/integration/harness"
)

func TestMain(m *testing.M) {
	if os.Getenv(insideEnv) != "" { // in a sandbox, which has no other program of this run
		os.Exit(m.Run())
	}
	harness.Main(m)
}

// args are the arguments of a call.
type args = map[string]any
