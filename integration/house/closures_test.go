package house

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// unlinked says what programs must not link, with the reason.
var unlinked = []struct {
	programs []string
	prefixes []string
	why      string
}{
	{[]string{"scopefs-log", "scopefs-holder", "scopefs-tunnels", "scopefs-init", "scopefs-files"}, []string{"net/http", "crypto/tls"}, "they connect to nothing themselves"},
	{[]string{"scopefs-log", "scopefs-holder", "scopefs-tunnels", "scopefs-init", "scopefs-files"}, []string{"go.yaml.in/yaml", "github.com/google/jsonschema-go"}, "they read no definition and check no schema"},
	{[]string{"scopefs-log", "scopefs-holder", "scopefs-tunnels", "scopefs-init", "scopefs-files"}, []string{"github.com/modelcontextprotocol", module + "tools/mcp"}, "they speak to the daemon alone"},
	{[]string{"scopefs-log", "scopefs-tunnels", "scopefs-init", "scopefs-files"}, []string{module + "internal/child"}, "the serving end imports nothing of the starting end"},
	{[]string{"scopefs-init", "scopefs-files"}, []string{module + "audit", module + "scope/agents"}, "they run in a sandbox: nothing there is a definition or a record"},
	{[]string{"scopefs-init"}, []string{module + "scope", "net", "regexp"}, "each sandbox waits for its start"},
	{[]string{"scopefs-files"}, []string{module + "tools/sandbox", module + "tools/file/worker"}, "the serving end imports nothing of the starting end"},
}

// TestProgramsLink: each program links what its role needs.
func TestProgramsLink(t *testing.T) {
	closures := map[string][]string{}
	for _, rule := range unlinked {
		for _, program := range rule.programs {
			if closures[program] == nil {
				for _, p := range goList(t, "-deps", "./cmd/"+program) {
					closures[program] = append(closures[program], p.ImportPath)
				}
				assert.Contains(t, closures[program], module+"cmd/"+program)
			}
			for _, prefix := range rule.prefixes {
				found := slices.IndexFunc(closures[program], func(path string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") })
				if found >= 0 {
					t.Errorf("%s links %s: %s", program, closures[program][found], rule.why)
				}
			}
		}
	}
}
