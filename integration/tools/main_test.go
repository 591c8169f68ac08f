// Package tools tests calls of tools by MCP clients: rules, approvals, delegation, servers, HTTP.
package tools

import (
	"testing"

	"github.com/scopefs/scopefs/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// args are the arguments of a call.
type args = map[string]any
