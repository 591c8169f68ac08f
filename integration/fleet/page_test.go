package fleet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestPage types the section "Start" of docs/fleet.md: its two blocks of scopefs.yaml, its commands, and those of its table that
// need nothing that waits. The server's address, the file of its token and the operator's key are others.
func TestPage(t *testing.T) {
	text := harness.ReadAll(t, "../../docs/fleet.md")
	_, text, found := strings.Cut(text, "\n## Start\n")
	require.True(t, found)
	text, _, found = strings.Cut(text, "\n### ")
	require.True(t, found)

	n := newServer(t)
	dir := t.TempDir()
	token := filepath.Join(dir, "nats.token")
	require.NoError(t, os.WriteFile(token, []byte("s3cret\n"), 0o600))
	here := strings.NewReplacer("tls://nats.example:4222", fmt.Sprintf("nats://127.0.0.1:%d", n.opts.Port),
		"/home/ada/nats.token", token, "/etc/scopefs/nats.token", token)

	var blocks []string // of scopefs.yaml
	for block := range strings.SplitSeq(text, "\n\n") {
		if strings.HasPrefix(block, "    fleet:") {
			blocks = append(blocks, strings.ReplaceAll(here.Replace(block)+"\n", "\n    ", "\n")[4:])
		}
	}
	require.Len(t, blocks, 2)
	home := filepath.Join(dir, "home")
	require.NoError(t, os.MkdirAll(filepath.Join(home, ".config/scopefs"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(home, ".config/scopefs/scopefs.yaml"), []byte(blocks[0]), 0o600))
	typed := func(line string) string {
		words := strings.Fields(line)
		cmd := exec.Command(harness.Program, words[1:]...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME=", "XDG_DATA_HOME=", "XDG_STATE_HOME=")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", line, out)
		return string(out)
	}

	lines := regexp.MustCompile(`(?m)^    \$ (scopefs .*)$`).FindAllStringSubmatch(text, -1)
	require.Len(t, lines, 2)
	typed(lines[0][1])
	key := strings.TrimSpace(typed(lines[1][1]))

	h := harness.LayOut(t, map[string]string{"a": agent})
	h.Put("scopefs.yaml", strings.Replace(blocks[1], "ada+5d2e0c6a+AUe0…", key, 1))
	h.Start()
	h.Eventually("the node is in the fleet", func() bool { return strings.Contains(typed("scopefs fleet ps"), "web-1") })
	h.Eventually("its events, too", func() bool {
		return strings.Contains(typed("scopefs fleet audit --node web-1 --since 2h --json"), `"mounted"`)
	})
	for _, row := range regexp.MustCompile("(?m)^\\| `(scopefs fleet (?:ps|agents|approvals))` \\|").FindAllStringSubmatch(text, -1) {
		typed(row[1])
	}
}
