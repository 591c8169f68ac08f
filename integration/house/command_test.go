package house

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestCommandIsSmall: the command links nothing that each of its starts would pay for and that scopefsd does in its place.
func TestCommandIsSmall(t *testing.T) {
	t.Parallel()
	reasons := map[string]string{
		"net/http":                        "57 packages that are initialised, 0.9 ms of a start of 1.4",
		"crypto/tls":                      "it connects to sockets of this host",
		"go.yaml.in/yaml":                 "it reads no definition",
		"github.com/google/jsonschema-go": "it checks no schema",
		"github.com/modelcontextprotocol": "internal/caller speaks as much of MCP as one call needs",
		module + "internal/config":        "likewise: internal/paths has the directories",
		"github.com/hanwen/go-fuse":       "it serves no view",
		module + "tools/sandbox":          "nor a sandbox",
		module + "internal/api":           "its messages have histories, approvals and logins in them",
	}
	for _, p := range goList(t, "-deps", "./cmd/scopefs") {
		for prefix, why := range reasons {
			assert.False(t, p.ImportPath == prefix || strings.HasPrefix(p.ImportPath, prefix+"/"), "cmd/scopefs links %s: %s", p.ImportPath, why)
		}
	}
}
