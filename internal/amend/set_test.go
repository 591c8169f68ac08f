package amend

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/scope/agents"
)

// TestSetKeepsRules: set leaves every rule that the user has written, however he wrote it, and the rule stays in force. Otherwise
// it is refused, and the definition has the same bytes.
func TestSetKeepsRules(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("XDG_CONFIG_HOME", "")
	dir := filepath.Join(t.TempDir(), "project")
	require.NoError(t, os.Mkdir(dir, 0o755))
	project, err := config.ProjectOf(dir)
	require.NoError(t, err)
	require.NoError(t, project.Make(true))
	p, err := config.Paths{Base: project.Base}.Complete()
	require.NoError(t, err)
	file := filepath.Join(p.Base, "agents.d", string(project.ID)+".md")
	made, err := os.ReadFile(file)
	require.NoError(t, err)
	first, secrets, ok := strings.Cut(string(made), "view:")
	require.True(t, ok)
	secrets, _ = strings.CutSuffix("view:"+secrets, "---\n")

	changes := func(to string) func() error {
		return func() error {
			d, err := Open(p, project.ID)
			if err == nil {
				err = d.Set([]string{"view", "changes"}, to)
			}
			if err == nil {
				err = d.Write()
			}
			return err
		}
	}
	flags := map[string]func() error{
		"direct": changes("direct"), "kept": changes("kept"), "held": changes("held"), "auto": changes("auto"),
		"presets": func() error { _, err := AddPresets(p, &project, []string{"npm", "pypi", "npm"}); return err },
	}
	const rules = `"secret/**": hide, ro: read`
	const earlier = `view:
  paths: # secrets: in no listing, and the agent can neither read nor create them
    "**/.env": seal
    "**/.env.{[^est]*,e[^x]*,s[^a]*,sa[^m]*,t[^e]*,te[^m]*}": seal # not .env.example, .env.sample, .env.template
    "**/{[^cr]*,c,c[^a]*,ca[^c]*,r,r[^o]*,roo[^t]*,root,root[^s]*}.pem": seal # not cacert.pem, roots.pem
    "**/id_{rsa,dsa,ecdsa,ed25519}{,_sk}": seal # private keys of SSH
  changes: auto
`
	const block = "\n  paths:\n    \"secret/**\": hide # mine\n    # and this\n    ro: read\n"
	for name, test := range map[string]struct {
		front string
		ours  bool   // no line of it is the user's
		no    string // what is refused
	}{
		"ours":              {front: secrets, ours: true},
		"ours, shown":       {front: "view: {changes: auto}\n", ours: true},
		"ours, shown later": {front: "view:\n  changes: held\n", ours: true},
		"ours, presets":     {front: "network: {presets: [go, npm]}\n" + secrets, ours: true},
		"ours, presets end": {front: secrets + "network: {presets: [go]}\n", ours: true},
		"flow":              {front: "view: {changes: auto, paths: {" + rules + "}}\n"},
		"flow, rules first": {front: "view: {paths: {" + rules + "}, changes: auto}\n"},
		"flow of lines":     {front: "view: {changes: auto, # mine\n  paths: {" + rules + "},\n  access: write}\n"},
		"flow, quoted":      {front: "view: {\"changes\": 'auto', paths: {" + rules + "}}\n"},
		"flow of seals":     {front: "view: {changes: auto, paths: {\"**/.env\": seal, " + rules + "}}\n"},
		"no changes":        {front: "view: {paths: {" + rules + "}}\n"},
		"no view":           {front: "limits: {pids: 100}\n"},
		"block":             {front: "view:" + block + "  changes: auto\n"},
		"block, first":      {front: "view:\n  changes: auto # or held" + block},
		"secrets and his":   {front: strings.Replace(secrets, "  changes:", "  paths:\n    ro: read\n    \"secret/**\": hide # mine\n  changes:", 1)},
		"secrets, earlier":  {front: earlier, ours: true},
		"his between":       {front: strings.Replace(earlier, "    \"**/id_", "    \"secret/**\": hide\n    \"**/id_", 1)},
		"his own secrets":   {front: "view: {secrets: hide, changes: auto, paths: {" + rules + "}}\n"},
		"his own hide":      {front: "view: {changes: auto, paths: {\"**/.env\": hide, " + rules + "}}\n"},
		"network":           {front: "network: {presets: [go], allow: [mine.example], deny: [not.example]}\nview: {changes: auto}\n"},
		"network, comment":  {front: "network: {presets: [npm, go]} # mine\nview:" + block},
		"network: none":     {front: "network: none\nview:" + block},
		"network: host":     {front: "network: host\nview: {changes: auto}\n"},
		"network, block":    {front: "network:\n  presets: [go]\n  deny:\n    - not.example\nview:" + block},
		"a comment":         {front: "view: {changes: auto} # mine\n"},
		"others":            {front: "view: {changes: auto, data: mediated, hardlinks: read, paths: {" + rules + "}}\nenv: {A: b}\nlimits: {pids: 100}\n"},
		"text like ours":    {front: "description: |\n  view: {changes: auto}\n  changes: auto\nview: {paths: {" + rules + "}}\n"},
		"of one identity":   {front: "identity: caller\nview: {changes: direct, paths: {" + rules + "}}\n", no: "kept held auto"},
		"twice":             {front: "view: {changes: auto}\nview: {paths: {" + rules + "}}\n", no: "direct kept held auto presets"},
		"no YAML":           {front: "view: {changes: auto, paths: {" + rules + "}}}\n", no: "direct kept held auto presets"},
		"no value":          {front: "view:\nlimits: {pids: 100}\n", no: "direct kept held auto presets"},
	} {
		for flag, set := range flags {
			const body = "view: {changes: auto}\nnetwork: {presets: [x]}\n"
			text := first + test.front + "---\n" + body
			if test.ours {
				text = strings.TrimSuffix(text, body)
			}
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			before, loads := definitions.Agent(p, project.ID)
			refused := set()
			now, err := os.ReadFile(file)
			require.NoError(t, err)
			at := name + ", " + flag + ":\n" + string(now)
			if strings.Contains(" "+test.no+" ", " "+flag+" ") {
				assert.ErrorContains(t, refused, ": ", at)
				assert.Equal(t, text, string(now), at)
				continue
			}
			if !assert.NoError(t, refused, at) || !assert.NoError(t, loads, at) {
				continue
			}
			after, err := definitions.Agent(p, project.ID)
			if !assert.NoError(t, err, at) {
				continue
			}
			want, got := *before.Definition, *after.Definition
			switch flag {
			case "presets":
				if !test.ours {
					assert.Equal(t, text, string(now), at)
				} else {
					assert.Subset(t, got.Network.Presets, []string{"npm", "pypi"}, at)
				}
				got.Network = want.Network
			default:
				to := agents.Changes(flag)
				if flag == "direct" {
					to = agents.ChangesDirect
				}
				assert.Equal(t, to, got.View.Changes, at)
				got.View.Changes = want.View.Changes
			}
			assert.Empty(t, want.Differs(&got), at)
			assert.True(t, flag == "presets" || reflect.DeepEqual(before.Grants.Hosts(), after.Grants.Hosts()), at)
			assert.True(t, test.ours || strings.HasSuffix(string(now), "---\n"+body), at)
			assert.Equal(t, test.ours, project.Unedited(string(now)), at)
			for _, comment := range []string{"# mine", "# and this", "# or held"} {
				assert.Equal(t, strings.Count(text, comment), strings.Count(string(now), comment), at)
			}
		}
	}
}

// TestSet: a value is one of YAML in a line, and no more than the value of its key; a key that is set can be unset.
func TestSet(t *testing.T) {
	t.Parallel()
	p := agentOf(t, "view: {changes: auto, secrets: seal}")
	for key, values := range map[string][]string{
		"view.changes": {"held, secrets: hide", "held}\nlimits: {pids: 1", "held\n---\nname: b", "&a held, paths: *a", "{", "other", "!!binary aGVsZA=="},
		"limits.pids":  {"many", "-1", "1, cpu: 2"},
		"name":         {"b"},
		"no-such-key":  {"1"},
		"view.paths":   {"{x: write}, access: read"},
	} {
		for _, value := range values {
			d, err := Open(p, "a")
			require.NoError(t, err)
			assert.Error(t, d.Set(strings.Split(key, "."), value), "%s: %s", key, value)
		}
	}
	// What set has written it changes again, and unsets.
	for key, values := range map[string][]string{
		"network.allow": {"[]", "[a.example]", "[b.example, {host: c.example, ports: [443]}]"}, "protect": {"[git-hooks]", `["*"]`},
		"limits": {"{pids: 3}", "{pids: 4, memory: 1GiB}"}, "view.paths": {"{x: read}", "{y: hide}"}, "tools": {"[bash]", "[]"},
	} {
		keys := strings.Split(key, ".")
		for _, value := range values {
			d, err := Open(p, "a")
			require.NoError(t, err)
			require.NoError(t, d.Set(keys, value), "%s: %s", key, value)
			require.NoError(t, d.Write())
		}
	}
	now, err := definitions.Agent(p, "a")
	require.NoError(t, err)
	assert.Equal(t, 4, now.Limits.PIDs)
	text, err := os.ReadFile(filepath.Join(p.Base, "agents.d", "a.md"))
	require.NoError(t, err)
	assert.Contains(t, string(text), "network: {allow: [b.example, {host: c.example, ports: [443]}]}\n")
	d, err := Open(p, "a")
	require.NoError(t, err)
	for _, key := range []string{"network.allow", "protect", "limits", "view.paths", "tools"} {
		require.NoError(t, d.Unset(strings.Split(key, ".")), key)
	}
	_, after := d.Changes()
	for _, key := range []string{"network", "protect", "limits", "paths", "tools"} {
		assert.NotContains(t, string(after), key+":")
	}

	p = agentOf(t, "view: {changes: auto, secrets: seal}")
	d, err = Open(p, "a")
	require.NoError(t, err)
	assert.Error(t, d.Unset([]string{"limits"}))
	require.NoError(t, d.Set([]string{"limits", "pids"}, "20"))
	require.NoError(t, d.Set([]string{"view", "changes"}, "held"))
	require.NoError(t, d.Unset([]string{"view", "secrets"}))
	require.NoError(t, d.Write())
	now, err = definitions.Agent(p, "a")
	require.NoError(t, err)
	assert.Equal(t, agents.ChangesHeld, now.View.Changes)
	assert.Equal(t, 20, now.Limits.PIDs)
	assert.Empty(t, now.View.Paths)
	var lines []string
	for _, e := range d.Widens() {
		lines = append(lines, e.String())
	}
	assert.Contains(t, strings.Join(lines, "\n"), "before: secrets: seal")
}
