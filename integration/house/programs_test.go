package house

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// links says what a program, or a package, must not link: directly or through others. "/..." is a package and what is below it,
// "./..." all of ours but the package itself.
var links = []struct{ program, not, why string }{
	{"cmd/scopefs-view", "net/http", "it parses /dev/fuse for hostile programs, and speaks to its daemon alone"},
	{"cmd/scopefs-view", "crypto/tls", "likewise"},
	{"cmd/scopefs-view", "go.yaml.in/yaml/...", "it gets its rules compiled from definitions, and reads none"},
	{"cmd/scopefs-view", "github.com/google/jsonschema-go/...", "it knows no tool"},
	{"cmd/scopefs-view", "github.com/modelcontextprotocol/...", "it knows no client"},
	{"cmd/scopefs-view", "tools/...", "likewise"},
	{"cmd/scopefs-view", "scope/agents", "likewise"},
	{"cmd/scopefs-view", "audit", "it makes events, and neither writes nor reads the log"},
	{"cmd/scopefs-view", "internal/view", "the end that is started imports nothing of the end that starts it"},
	{"cmd/scopefs-view", "internal/child", "it starts no process"},
	{"cmd/scopefs-view", "scope/beneath/mounts", "it gets its directories as mounts, and makes none"},

	{"cmd/scopefs-context", "net/http", "it parses /dev/fuse for hostile programs, and speaks to its daemon alone"},
	{"cmd/scopefs-context", "crypto/tls", "likewise"},
	{"cmd/scopefs-context", "go.yaml.in/yaml/...", "it reads no definition"},
	{"cmd/scopefs-context", "github.com/google/jsonschema-go/...", "it knows no tool"},
	{"cmd/scopefs-context", "github.com/modelcontextprotocol/...", "it knows no client"},
	{"cmd/scopefs-context", "tools/...", "likewise"},
	{"cmd/scopefs-context", "scope/...", "the daemon says which files a call has: it decides nothing"},
	{"cmd/scopefs-context", "fs", "it has files in memory, and no directory"},
	{"cmd/scopefs-context", "audit/...", "it records nothing"},
	{"cmd/scopefs-context", "internal/contextfs", "the end that is started imports nothing of the end that starts it"},
	{"cmd/scopefs-context", "internal/child", "it starts no process"},

	{"cmd/scopefs-log", "net/http", "it connects to nothing"},
	{"cmd/scopefs-log", "crypto/tls", "likewise"},
	{"cmd/scopefs-log", "go.yaml.in/yaml/...", "it reads no definition"},
	{"cmd/scopefs-log", "github.com/google/jsonschema-go/...", "it checks no schema"},
	{"cmd/scopefs-log", "github.com/modelcontextprotocol/...", "it speaks to the daemon alone"},
	{"cmd/scopefs-log", "tools/...", "likewise"},
	{"cmd/scopefs-log", "audit/proof", "who writes the log proves nothing of it: that is for others, with a copy"},
	{"cmd/scopefs-log", "scope/...", "lines are lines, whatever they say"},
	{"cmd/scopefs-log", "internal/child", "the end that is started imports nothing of the end that starts it"},

	{"cmd/scopefs-init", "net/http", "it connects to nothing"},
	{"cmd/scopefs-init", "scope/...", "it runs in a sandbox: nothing there is a definition"},
	{"cmd/scopefs-init", "audit/...", "nor a record"},
	{"cmd/scopefs-init", "tools", "it starts what it is told, and knows no call"},
	{"cmd/scopefs-init", "regexp", "each sandbox waits for its start"},
	{"cmd/scopefs-init", "internal/child", "the end that is started imports nothing of the end that starts it"},

	{"cmd/scopefs-files", "net/http", "it connects to nothing"},
	{"cmd/scopefs-files", "crypto/tls", "likewise"},
	{"cmd/scopefs-files", "go.yaml.in/yaml/...", "it reads no definition"},
	{"cmd/scopefs-files", "github.com/google/jsonschema-go/...", "it checks no schema"},
	{"cmd/scopefs-files", "github.com/modelcontextprotocol/...", "it speaks to the daemon alone"},
	{"cmd/scopefs-files", "scope/agents", "it runs in a sandbox: nothing there is a definition"},
	{"cmd/scopefs-files", "audit/...", "nor a record"},
	{"cmd/scopefs-files", "tools", "the door is the daemon's"},
	{"cmd/scopefs-files", "tools/sandbox", "the end that is started imports nothing of the end that starts it"},
	{"cmd/scopefs-files", "tools/file/worker", "likewise"},
	{"cmd/scopefs-files", "internal/child", "likewise"},

	{"cmd/scopefs-ssh", "golang.org/x/crypto/...", "it has no key: whoever signs is asked"},
	{"cmd/scopefs-ssh", "scope/...", "it runs in a sandbox: nothing there is a definition"},
	{"cmd/scopefs-ssh", "net/http", "it passes on what ssh says"},
	{"cmd/scopefs-ssh", "tools/sshkeys", "the end that asks imports nothing of the end that decides"},

	{"cmd/scopefs-init", "net", "it has no time for it"},
	{"cmd/scopefs-holder", "net/http", "it keeps descriptors, and reads nothing of an agent's"},
	{"cmd/scopefs-holder", "tools/...", "it outlives a daemon that is dead, and needs nothing of it"},
	{"cmd/scopefs-holder", "scope/...", "likewise"},
	{"cmd/scopefs-holder", "internal/holder", "the end that is started imports nothing of the end that starts it"},
	{"cmd/scopefs-holder", "internal/child", "likewise"},
	{"cmd/scopefs-agent", "scope/agents", "it knows no rule: the daemon decides"},
	{"cmd/scopefs-agent", "scope/hosts", "likewise"},
	{"cmd/scopefs-agent", "github.com/modelcontextprotocol/...", "it speaks to its daemon alone"},
	{"cmd/scopefs-agent", "github.com/google/jsonschema-go/...", "it knows no tool"},
	{"cmd/scopefs-agent", "tools/sandbox/...", "nor what runs in a sandbox"},
	{"cmd/scopefs-agent", "internal/agentproc", "the end that is started imports nothing of the end that starts it"},
	{"cmd/scopefs-agent", "internal/child", "likewise"},

	{"cmd/scopefs-yaml", "net", "it reads one text, and answers it"},
	{"cmd/scopefs-yaml", "os/exec", "likewise"},
	{"cmd/scopefs-yaml", "encoding/json", "likewise"},
	{"cmd/scopefs-yaml", "scope/...", "it parses, and understands nothing"},
	{"cmd/scopefs-yaml", "internal/config", "the end that is started imports nothing of the end that starts it"},

	{"cmd/scopefs", "internal/view/serve", "who serves a view must not touch one, and the daemon touches views"},
	{"cmd/scopefs", "internal/contextfs/serve", "likewise"},
	{"cmd/scopefs", "modernc.org/...", "drivers of stores are programs of their own"},
	{"cmd/scopefs", "github.com/nats-io/...", "likewise"},
	{"cmd/scopefs", "google.golang.org/grpc/...", "CSI is a program of its own"},
	{"cmd/scopefs-console", "internal/daemon", "it is a client of the control API, and nothing else"},
	{"cmd/scopefs-csi", "internal/daemon", "likewise"},

	{"scope", "./...", "what an agent may do must be decidable without anything else"},
	{"scope/context", "./...", "what a call may see of a context must be decidable without anything else"},
	{"scope/beneath", "./...", "a richer os.Root is useful alone"},
	{"scope/...", "fs/...", "a definition is text: nothing runs for it to be read"},
	{"scope/...", "tools/...", "likewise"},
	{"scope/...", "net/http", "likewise"},
	{"audit/tree", "./...", "the tree over lines is maths"},
	{"audit/event", "./...", "who makes an event needs nothing of the log"},
	{"audit/proof", "audit", "a log must be provable without what writes it"},
	{"audit", "audit/proof", "and written without what proves it"},
	{"audit", "scope/...", "the log must be provable without what writes to it"},
	{"audit", "fs/...", "likewise"},
	{"audit", "tools/...", "likewise"},
	{"docs/examples/check-proof", "./...", "an example stands alone"},
	{"fs/fusedev", "./...", "a connection to the kernel carries any file system"},
	{"fs/fusemount", "./...", "likewise"},
	{"fs/fusemount", "github.com/hanwen/go-fuse/v2/...", "who mounts need not serve: its tables are 44 of the 246 page faults of a small program's start"},
	{"fs/...", "tools/...", "the view decides by scope: it knows no call"},
	{"fs/...", "scope/agents", "another module can have a view without definition files"},
	{"tools", "scope/agents", "another module can have the one door with rules of its own, and without definition files"},
	{"tools", "fs/...", "likewise, and without views"},
	{"tools/...", "scope/agents", "a tool does not know where the rules come from"},
	{"tools/...", "internal/config", "likewise"},
	{"tools/...", "internal/session", "a tool does not know who calls it"},
	{"internal/session", "internal/agent", "an agent asks the daemon by session.Daemon, and by nothing else: it is to be another process"},
	{"internal/session", "internal/daemon", "likewise"},
	{"internal/session", "internal/definitions", "likewise: the daemon has where definitions come from"},
	{"internal/session", "internal/stores/...", "and the connections to stores"},
	{"internal/session", "internal/state", "and what outlives an agent's process"},
	{"internal/api", "internal/session", "a client of the daemon needs nothing that runs in it"},
	{"internal/api", "internal/daemon", "likewise"},
	{"internal/bridge", "tools/...", "it passes messages on, and must not decide"},
	{"internal/selftest", "./...", "it attacks from outside, with the programs that users have"},
}

// mostLines is how many lines of ours a program may link, generated ones too. Beside them the two decode their daemon's messages with
// encoding/json, which no agent writes, and parse requests of the kernel with go-fuse, which links os/exec and net for its own mounts.
var mostLines = map[string]int{
	"cmd/scopefs-view":    30700, // with the reserve of a full disk
	"cmd/scopefs-context": 3000,
	"cmd/scopefs-log":     6000, // with the channels of agents
	"cmd/scopefs-init":    1300,
	"cmd/scopefs-files":   7600, // with what getxattrat(2) does before Linux 6.13
	"cmd/scopefs-yaml":    2000,
}

// linked are the packages that each package links, itself first.
type linked map[string]*pkg

func linkedPackages(t *testing.T) linked {
	all := linked{}
	for _, p := range goList(t, append([]string{"-deps"}, modules...)...) {
		all[p.ImportPath] = p
	}
	return all
}

func (all linked) of(path string) (found []string) {
	found = []string{path}
	seen := map[string]bool{path: true}
	for i := 0; i < len(found); i++ {
		if p := all[found[i]]; p != nil {
			for _, imp := range p.Imports {
				if !seen[imp] {
					seen[imp] = true
					found = append(found, imp)
				}
			}
		}
	}
	return found
}

// within reports whether a package, by its name in a row, is one of a pattern.
func within(pattern, name string) bool {
	dir, below := strings.CutSuffix(pattern, "/...")
	return name == dir || below && strings.HasPrefix(name, dir+"/")
}

// TestProgramsLink: no program and no package links what its rows name. Each row names what is there.
func TestProgramsLink(t *testing.T) {
	all := linkedPackages(t)
	named := func(pattern string) bool {
		for path := range all {
			if within(pattern, strings.TrimPrefix(path, module)) {
				return true
			}
		}
		return false
	}
	for _, row := range links {
		assert.NotEmpty(t, row.why)
		assert.True(t, named(row.program), "%s is no package: remove the row", row.program)
		assert.True(t, row.not == "./..." || named(row.not), "%s is no package: remove the row", row.not)
		for path := range all {
			name, ours := strings.CutPrefix(path, module)
			if !ours || !within(row.program, name) {
				continue
			}
			for _, dep := range all.of(path)[1:] {
				what, own := strings.CutPrefix(dep, module)
				if bad := within(row.not, what) || row.not == "./..." && own; bad {
					t.Errorf("%s links %s, by %s: %s", name, what, strings.Join(all.way(path, dep), ", "), row.why)
				}
			}
		}
	}
}

// way returns the packages by which one links another.
func (all linked) way(from, to string) (by []string) {
	if p := all[from]; p == nil || slices.Contains(p.Imports, to) {
		return []string{"itself"}
	}
	for _, next := range all.of(from)[1:] {
		if p := all[next]; p != nil && slices.Contains(p.Imports, to) {
			by = append(by, strings.TrimPrefix(next, module))
		}
	}
	return by
}

// TestProgramsLines: a program links few of our lines: those that a reader has to know to say what it may do.
func TestProgramsLines(t *testing.T) {
	all := linkedPackages(t)
	for program, most := range mostLines {
		lines := 0
		for _, path := range all.of(module + program) {
			p := all[path]
			if !strings.HasPrefix(path, module) {
				continue
			}
			require.NotNil(t, p, path)
			for _, file := range p.GoFiles {
				text, err := os.ReadFile(filepath.Join(p.Dir, file))
				require.NoError(t, err)
				lines += bytes.Count(text, []byte("\n"))
			}
		}
		t.Logf("%s: %d lines", program, lines)
		assert.LessOrEqual(t, lines, most, program)
		assert.Greater(t, lines, most/2, "%s: lower the bound", program)
	}
}

// TestSessionImports: package session names no part of the daemon, only session.Daemon; contextfs still links package view for it.
func TestSessionImports(t *testing.T) {
	for _, p := range goList(t, "./internal/session") {
		for _, not := range []string{"internal/view", "internal/credential", "internal/trust", "internal/fleet", "internal/placement"} {
			assert.NotContains(t, p.Imports, module+not, "an agent asks the daemon by session.Daemon, and by nothing else: it is to be another process")
		}
	}
}
