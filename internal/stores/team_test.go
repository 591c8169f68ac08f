package stores

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
)

// TestTeam: an agent that a repository names is in no list of scopefs.yaml, by a pattern or by its id. An agent of the operator's
// with the same id is.
func TestTeam(t *testing.T) {
	for name, of := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"the operator's":   {map[string]string{"research-docs.md": "---\nname: research-docs\n---\n"}, true},
		"the repository's": {map[string]string{"a.md": "---\nname: a\n---\n", "a.trusted.yaml": "agents: {research-docs: {}}\n"}, false},
	} {
		for _, entry := range []string{"research-*", "research-docs", "*"} {
			settings, err := config.Parse([]byte(`stores:
  services: {listed: {url: "https://a.example", agents: ["`+entry+`"]}}
  notify: {listed: {kind: webhook, url: "https://a.example", agents: ["`+entry+`"]}}
  metrics: {url: "https://a.example", buckets: {listed: ["`+entry+`"]}}
  messages: {channels: {listed: ["`+entry+`"]}, inboxes: {listed: ["`+entry+`"]}}
`), config.Checks{})
			require.NoError(t, err)
			all := New(settings.Stores, "", Host{})
			list, err := all.Tools()
			require.NoError(t, err)
			base := t.TempDir()
			require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
			for file, text := range of.files {
				require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", file), []byte(text), 0o644))
			}
			known, err := Known(settings.Stores)
			require.NoError(t, err)
			loaded, errs := agents.Load(base, agents.Host{Tools: known})
			require.Empty(t, errs)
			agent := loaded.Agents["research-docs"]
			require.NotNil(t, agent)
			for _, store := range []string{"services.listed", "notify.listed"} {
				assert.Equal(t, of.want, slices.Contains(all.Of(agent), store), "%s, %s: %s", name, entry, store)
			}
			for args, tool := range map[string]string{
				`{"service": "listed", "path": "x"}`:                                         "http_request",
				`{"channel": "listed", "content": "x"}`:                                      "notify",
				`{"bucket": "listed", "points": [{"measurement": "m", "fields": {"a": 1}}]}`: "metrics_write",
				`{"channel": "listed", "text": "x"}`:                                         "publish",
				`{"to": "listed", "text": "x"}`:                                              "publish",
			} {
				at := slices.IndexFunc(list, func(t tools.Tool) bool { return t.Name == tool })
				require.GreaterOrEqual(t, at, 0, tool)
				refused, ok := list[at].Judge(tools.Env{Agent: agent.Name, Within: []scope.Principal{agent.Grants.Principal()}}, []byte(args))
				assert.Equal(t, of.want, ok, "%s, %s: %s %s: %v", name, entry, tool, args, refused)
				if !of.want {
					assert.Contains(t, refused.Remedy, "define research-docs in agents.d", tool)
				}
			}
		}
	}
}
