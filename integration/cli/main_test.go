// Package cli tests commands as users type them: run, call, the scripts and README.md.
package cli

import (
	"testing"

	"github.com/scopefs/scopefs/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
