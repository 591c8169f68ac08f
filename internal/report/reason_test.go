package report

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/scope"
)

// TestWhyCall decides a tool call with the current rules.
func TestWhyCall(t *testing.T) {
	cases := map[string]struct {
		event audit.Event
		want  Reason
	}{
		"denied": {audit.Event{Op: "write_file", Verdict: audit.Deny, Rule: "tools: [bash]"},
			Reason{Op: "write_file", Verdict: "deny", Rule: "tools: [bash]", Now: "deny", NowRule: "access: read", Remedy: "set access: write in view, and add write_file to tools"}},
		"asked": {audit.Event{Op: "stat", Verdict: audit.Deny, Rule: "policy.tools.ask: stat"},
			Reason{Op: "stat", Verdict: "deny", Rule: "policy.tools.ask: stat", Now: "ask", NowRule: "policy.tools.ask: stat", Remedy: "remove stat from policy.tools.ask, or approve the call"}},
		"too often": {audit.Event{Op: "bash", Verdict: audit.Deny, Rule: "rate_limits: bash: 30/minute", RuleKind: "rate"},
			Reason{Op: "bash", Verdict: "deny", Rule: "rate_limits: bash: 30/minute", Kind: "rate",
				Remedy: "loosen rate_limits: bash: 30/minute", Note: "the lists and the policy allow the tool; rates decide about each call"}},
		"allowed": {audit.Event{Op: "bash", Verdict: audit.Allow, Rule: "no rule"},
			Reason{Op: "bash", Verdict: "allow", Rule: "no rule", Now: "allow", NowRule: "tools: [bash, stat]"}},
		"a name of bytes": {audit.Event{Op: "x\x1b", Verdict: audit.Deny, Rule: "no such tool"},
			Reason{Op: `x\x1b`, Verdict: "deny", Rule: "no such tool", Now: "deny", NowRule: "no such tool", Remedy: "name it NAME, builtin:NAME or mcp:SERVER:TOOL"}},
	}
	cases["a field of a request"] = struct {
		event audit.Event
		want  Reason
	}{audit.Event{Event: audit.KindNetwork, Op: "request", Target: "GET https://api.test/x", Verdict: audit.Deny, Rule: "network.allow: api.test, without the field X-Http-Method", RuleKind: "field"},
		Reason{Op: "request", Path: "GET https://api.test/x", Verdict: "deny", Rule: "network.allow: api.test, without the field X-Http-Method", Kind: "field",
			Remedy: "leave out the field, or allow every method and path of the host", Note: "the rules allow the method and the path; a field made some servers read others"}}
	cases["an extension's private tool"] = struct {
		event audit.Event
		want  Reason
	}{audit.Event{Op: "mcp:docs:search", Verdict: audit.Deny, Rule: "no such server"},
		Reason{Op: "mcp:docs:search", Verdict: "deny", Rule: "no such server", Now: "deny", NowRule: "no such server",
			Remedy: `define "docs" in mcp_servers, and add mcp:docs:search to tools`,
			Note:   "docs is private to the agents of extensions.d/wiki.yaml: to share it, add a to agents there, or set its visibility to public"}}
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "extensions.d"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(base, "extensions.d/wiki.yaml"), []byte("name: wiki\nagents: [b]\nmcp_servers: {docs: {command: \"true\"}}\n"), 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d/b.md"), []byte("---\nname: b\n---\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d/a.md"), []byte("---\nname: a\ntools: [bash, stat]\nview: {access: read}\npolicy: {tools: {ask: [stat]}}\nnetwork: {allow: [{host: api.test, methods: [GET]}]}\n---\n"), 0o644))
	p, err := config.Paths{Base: base}.Complete()
	require.NoError(t, err)
	log, err := audit.Open(p.Audit(), audit.Options{})
	require.NoError(t, err)
	defer log.Close()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.event.Event, c.event.Agent = cmp.Or(c.event.Event, audit.KindCall), "a"
			seq, err := log.Append(context.Background(), c.event)
			require.NoError(t, err)
			e, err := eventOf(context.Background(), p, seq)
			require.NoError(t, err)
			got, err := why(p, definitions.Read(p, nil), e)
			require.NoError(t, err)
			c.want.Seq, c.want.Agent = seq, "a"
			if c.want.Now != "" {
				c.want.Origin = filepath.Join(base, "agents.d/a.md") + " (base)"
			}
			got.grant, got.decide = grant{}, nil
			assert.Equal(t, &c.want, got)
		})
	}
}

// TestWhyWhose: whose rule decided: the operator's definition, a list of his, or the file of a repository that he trusted, whose
// rule says the same in the same words. What a command would allow beside is said.
func TestWhyWhose(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	for name, text := range map[string]string{
		"agents.d/a.md":           "---\nname: a\nprotect: [mine, git-config]\npolicy: {tools: {exclude: [stat, '*_dir']}}\nview: {paths: {own: hide}}\n---\n",
		"agents.d/a.trusted.yaml": "policy: {tools: {exclude: [bash]}}\nview: {paths: {theirs: hide}}\nnetwork: {allow: [a.test], deny: [b.test]}\nagents: {r: {tools: [stat]}}\n",
		"protect.d/mine.yaml":     "paths: ['**/kept']\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(base, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(base, name), []byte(text), 0o644))
	}
	p, err := config.Paths{Base: base}.Complete()
	require.NoError(t, err)
	known := definitions.Read(p, nil)
	require.Empty(t, known.Errs)
	own, trusted := filepath.Join(base, "agents.d/a.md")+" (base)", filepath.Join(base, "agents.d/a.trusted.yaml")+" (the repository's, which you trusted)"
	for name, test := range map[string]struct {
		event audit.Event
		want  string
	}{
		"a tool":             {audit.Event{Event: audit.KindCall, Op: "stat"}, own},
		"a tool of theirs":   {audit.Event{Event: audit.KindCall, Op: "bash"}, trusted},
		"a path":             {audit.Event{Event: audit.KindFile, Op: "lookup", Path: "own"}, own},
		"a path of theirs":   {audit.Event{Event: audit.KindFile, Op: "lookup", Path: "theirs/x"}, trusted},
		"a host of theirs":   {audit.Event{Event: audit.KindNetwork, Op: "connect", Target: "b.test:443"}, trusted},
		"a list":             {audit.Event{Event: audit.KindFile, Op: "create", Path: "x/kept", RuleKind: "protect"}, "protect.mine (base), named in " + own},
		"git's rules":        {audit.Event{Event: audit.KindFile, Op: "rename", Path: ".git/config", RuleKind: "protect", Rule: "protect git-config: sets x.y"}, own},
		"an agent of theirs": {audit.Event{Event: audit.KindCall, Op: "bash", Agent: "r"}, trusted},
	} {
		test.event.Agent, test.event.Verdict = cmp.Or(test.event.Agent, "a"), audit.Deny
		got, err := why(p, known, test.event)
		require.NoError(t, err, name)
		assert.Equal(t, test.want, got.Origin, "%s: %+v", name, got)
	}

	got, err := why(p, known, audit.Event{Event: audit.KindCall, Op: "make_dir", Agent: "a", Verdict: audit.Deny})
	require.NoError(t, err)
	got.Suggest(p, known, func(id scope.ID) []string { return []string{"--agent", string(id)} })
	assert.Equal(t, "scopefs allow make_dir --remove-deny --agent a", got.Command)
	assert.Contains(t, got.Widens, "tools: list_dir: allowed; before: denied (policy.tools.exclude: *_dir)")
	var text strings.Builder
	require.NoError(t, got.Print(&text))
	assert.Contains(t, text.String(), "\nby the rules of: "+own+"\n")
	assert.Contains(t, text.String(), "\n  it allows: tools: list_dir: allowed; before: denied (policy.tools.exclude: *_dir)\n")

	shown, err := ShowAgent(p, known, "a")
	require.NoError(t, err)
	assert.Equal(t, []string{"network: connects to a.test ports 443 80"}, shown.Beyond)
	var lines strings.Builder
	require.NoError(t, shown.Print(&lines))
	assert.Regexp(t, `beyond yours +network: connects to a\.test ports 443 80\n`, lines.String())
	assert.Regexp(t, `deny   bash +policy\.tools\.exclude: bash \(\.scopefs\.yaml\)\n`, lines.String())
	assert.Regexp(t, `deny   stat +policy\.tools\.exclude: stat\n`, lines.String())
}

// TestShowMembers: of a member that may widen, what it may do for the agent and the agent may not, by whatever names.
func TestShowMembers(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
	for name, keys := range map[string]string{
		"a":    "tools: [read_file, delegate]\nmembers: {wide: {may: widen}, narrow: {}}\nview: {access: read}",
		"wide": "tools: ['read_*']\nnetwork: {allow: [a.test]}", "narrow": "tools: [bash]",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", name+".md"), []byte("---\nname: "+name+"\n"+keys+"\n---\n"), 0o644))
	}
	p, err := config.Paths{Base: base}.Complete()
	require.NoError(t, err)
	known := definitions.Read(p, nil)
	require.Empty(t, known.Errs)
	shown, err := ShowAgent(p, known, "a")
	require.NoError(t, err)
	assert.Equal(t, []string{
		"wide: network: connects to a.test ports 443 80",
		"wide: tools: tools that come later: allowed, such as read_; before: denied (tools: [read_file, delegate])",
	}, shown.Wider)
}
