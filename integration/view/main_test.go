// Package view tests what clients of a mounted view see: POSIX, coherence with the host, reloads.
package view

import (
	"testing"

	"github.com/scopefs/scopefs/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// args are the arguments of a call.
type args = map[string]any
