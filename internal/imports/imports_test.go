package imports

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// accepted checks that scopefs parses a definition.
func accepted(t *testing.T, r Result) {
	t.Helper()
	t.Setenv("A", "a variable of some definitions")
	t.Setenv("B", "another")
	t.Setenv("C", "another")
	_, err := agents.ParseDefinition(string(r.Name)+".md", r.Text)
	if err != nil && strings.Contains(err.Error(), "unknown key") {
		return // a key that this version does not have yet
	}
	require.NoError(t, err, "%s", r.Text)
}

// parsed parses a definition as YAML.
func parsed(t *testing.T, r Result) (got keys, prompt string) {
	t.Helper()
	front, body, ok := strings.Cut(strings.TrimPrefix(string(r.Text), "---\n"), "\n---\n")
	require.True(t, ok, "%s", r.Text)
	dec := yaml.NewDecoder(strings.NewReader(front))
	dec.KnownFields(true)
	require.NoError(t, dec.Decode(&got), "%s", r.Text)
	assert.Equal(t, string(r.Name), got["name"])
	return got, strings.TrimSuffix(body, "\n")
}

func one(t *testing.T, src Source) Result {
	t.Helper()
	all, err := Convert(src)
	require.NoError(t, err)
	require.Len(t, all, 1)
	return all[0]
}

// what returns the keys of the losses.
func what(r Result) []string {
	list := []string{}
	for _, l := range r.Lost {
		list = append(list, l.What)
		if l.What == "" || l.Why == "" || l.Instead == "" {
			list = append(list, "a hole: "+l.String())
		}
	}
	return list
}

// agent returns an agent file with these keys.
func agent(keys string) []byte {
	return []byte("---\n" + strings.TrimSpace(keys) + "\n---\nYou work.\n")
}

// keys is a parsed mapping.
type keys = map[string]any

func words(s string) (list []any) {
	list = []any{}
	for w := range strings.FieldsSeq(s) {
		list = append(list, w)
	}
	return list
}

func TestTextsComeBack(t *testing.T) {
	for _, s := range []string{"", "*", "a: b", "yes", "~", "12", "0x1f", "1e3", "<<", "=", "- x", "#x", "x #y", "a\nb", " a", "a ", "\ta",
		"\"", "'", "${A}", "a\\b", "\u2028", "\u0085x", "\ufeff", "null", "!x", "&x", "2001-01-01", "---", "{a}", "[a]", "a\r\nb", "\n", "é", "mcp:x:*"} {
		d := &draft{ours: ours(t), id: "a", description: s, tools: []string{s}, filters: []string{s},
			servers: []*server{{name: "s", command: s, env: []variable{{"K", s}}}}}
		text, err := d.render()
		require.NoError(t, err)
		got, _ := parsed(t, Result{Name: "a", Text: text})
		assert.Equal(t, []any{s}, got["tools"], "%q", s)
		assert.Equal(t, keys{"*": []any{s}}, got["argument_filters"], "%q", s)
		assert.Equal(t, keys{"s": keys{"command": s, "env": keys{"K": s}}}, got["mcp_servers"], "%q", s)
		if s != "" {
			assert.Equal(t, s, got["description"])
		}
	}
}

func TestDetect(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want Format
		err  string
	}{
		"gemini by kind":     {"---\nname: a\nkind: local\n---\n", Gemini, ""},
		"gemini by tool":     {"---\nname: a\ntools: [glob, run_shell_command]\n---\n", Gemini, ""},
		"gemini by server":   {"---\nname: a\nmcpServers: {x: {command: y}}\n---\n", Gemini, ""},
		"gemini by mcp_":     {"---\nname: a\ntools: [mcp_x_y]\n---\n", Gemini, ""},
		"claude by text":     {"---\nname: a\ntools: Foo, Bar\n---\n", Claude, ""},
		"claude by tool":     {"---\nname: a\ntools: [Read]\n---\n", Claude, ""},
		"claude by mcp__":    {"---\nname: a\ntools: [mcp__x__y]\n---\n", Claude, ""},
		"claude by color":    {"---\nname: a\ncolor: red\n---\n", Claude, ""},
		"claude by model":    {"---\nname: a\nmodel: sonnet\n---\n", Claude, ""},
		"manifest":           {"agent_type: a\nmodules: {ntfy: {}}\n", ScopedMCP, ""},
		"manifest in JSON":   {`{"agent_type": "a", "modules": {"ntfy": {}}}`, ScopedMCP, ""},
		"manifest, one mark": {"---\nagent_type: a\nmodules: {ntfy: {}}\n", ScopedMCP, ""},
		"either":             {"---\nname: a\ndescription: b\nmodel: inherit\n---\n", "", "could be gemini or claude: name the format with --from"},
		"both":               {"---\nname: a\nkind: local\ncolor: red\n---\n", "", "could be gemini (it has kind) or claude (it has color): name the format with --from"},
		"ours":               {"---\nname: a\nview: {access: read}\nmcp_servers: {}\n---\n", "", "looks like a definition already"},
		"none":               {"name: a\n", "", "name it with --from"},
		"empty":              {"", "", "is empty"},
		"alias":              {"agent_type: &a b\nmodules: *a\n", "", "anchors and aliases are not read"},
		"merge":              {"agent_type: a\nmodules: {<<: {a: b}}\n", "", "a key is not a string"},
		"twice":              {"agent_type: a\nagent_type: b\nmodules: {}\n", "", "twice"},
		"two documents":      {"agent_type: a\n---\nmodules: {}\n", "", "a second YAML document"},
		"no YAML":            {"---\nname: [\n---\n", "", "is not YAML"},
		"no UTF-8":           {"\xff", "", "is not UTF-8"},
		"large":              {strings.Repeat("#", MaxSource+1), "", "is larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := Convert(Source{Tools: ours(t), File: "x.md", Text: []byte(c.text)})
			if c.err != "" {
				assert.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, all[0].Format)
			assert.NotEmpty(t, all[0].Because)
		})
	}
}

func TestNames(t *testing.T) {
	for name, c := range map[string]struct {
		name string
		give scope.ID
		want scope.ID // "" is an error
		lost bool
	}{
		"an id":      {"code-reviewer", "", "code-reviewer", false},
		"case, _":    {"Code_Reviewer v1.2", "", "code-reviewer-v1-2", true},
		"none":       {"", "", "file", true},
		"given":      {"Größe", "size", "size", true},
		"letters":    {"Größe", "", "", false},
		"slash":      {"../x", "", "", false},
		"long":       {strings.Repeat("x", 64), "", "", false},
		"underscore": {"_x", "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			text := "tools: Read"
			if c.name != "" {
				text = "name: " + c.name + "\n" + text
			}
			all, err := Convert(Source{Tools: ours(t), File: "dir/file.md", Text: agent(text), Format: Claude, Name: c.give})
			if c.want == "" {
				assert.ErrorContains(t, err, "--name ID")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, all[0].Name)
			assert.Equal(t, c.lost, len(all[0].Lost) > 0)
		})
	}
}

func TestLossIsOneLine(t *testing.T) {
	r := one(t, Source{Tools: ours(t), Text: agent("name: a\ntools: [\"x\\ny\\e[0m\"]"), Format: Claude})
	assert.Equal(t, `tools: x\u000ay\u001b[0m: scopefs has no such tool; left out`, r.Lost[0].String())
}

// TestGoPattern checks that a filter matches at least what Python's would.
func TestGoPattern(t *testing.T) {
	for python, c := range map[string]struct{ matches, not string }{
		`(password|api.?key)`: {"my api-key", "pass"},
		`\.\./`:               {"a/../b", "a/b"},
		`secret$`:             {"secret\n", "secrets"},
		`^\d+$`:               {"٣", "x"},
		`\w+@`:                {"ü@", "@"},
		`[\w.]x`:              {"üx", "-x"},
		`a\sb`:                {"a\u00a0b", "ab"},
		`[]x]y`:               {"]y", "zy"},
		`[^]]y`:               {"zy", "]y"},
		`[[:d]z`:              {"[z", "5z"},
		`\bkey\b`:             {"a key", "monkeys"},
		`(?i)token`:           {"TOKEN", "tok"},
		`[\b]`:                {"\b", "b"},
	} {
		re, err := goPattern(python, false)
		require.NoError(t, err, python)
		assert.Regexp(t, regexp.MustCompile(re), c.matches, python)
		assert.NotRegexp(t, regexp.MustCompile(re), c.not, python)
	}
	for _, python := range []string{`(?=a)`, `(a)\1`, `a{,3}`, `a\Z`, `\p{L}`, `(?P=x)`, `a++`, `(?<!x)y`, `\Bx`} {
		_, err := goPattern(python, false)
		assert.ErrorIs(t, err, errPattern, python)
	}
}
