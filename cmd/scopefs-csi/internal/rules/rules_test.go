package rules

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

func load(t *testing.T, text string) (Rules, error) {
	name := filepath.Join(t.TempDir(), "csi.yaml")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return Load(name)
}

// TestLoad: a file with a mistake gives nobody anything, and the error says where it is.
func TestLoad(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "has no rules",
		"rules: [{namespace: a}]":   "csi.yaml:1: service_account: \"\" is no pattern",
		"rules: []\nrule: []":       `csi.yaml:2: unknown key "rule": did you mean rules`,
		"rules:\n- namespace: '[a'": `csi.yaml:2: namespace: "[a" is no pattern`,
		"rules:\n- {namespace: a, service_account: b, agents: []}":                                "names no agent",
		"rules:\n- {namespace: a, service_account: b, agents: [c], prefix: x}":                    `csi.yaml:2: prefix: "x": want an absolute path`,
		"rules:\n- {namespace: a, service_account: b, agents: [c], prefix: /x/../y}":              "want an absolute path",
		"rules:\n- {namespace: a, service_account: b, agents: [c], definition: {dir: /etc}}":      "dir follows from",
		"rules:\n- {namespace: a, service_account: b, agents: [c], definition: x}":                "want the keys of a definition",
		"rules:\n- {namespace: a, service_account: b, agents: [c], access: all}":                  "access",
		"rules:\n- {namespace: a, service_account: b, agents: [c], definitions: [x/y]}":           "csi.yaml:2: definitions: they narrow a definition that the rule makes",
		"rules:\n- {namespace: a, service_account: b, agents: [c], prefix: /x, definitions: [[]}": "csi.yaml:2",
		"rules:\n- &a {namespace: a, service_account: b, agents: [c]}\n- *a":                      "anchor",
	} {
		_, err := load(t, text)
		assert.ErrorContains(t, err, want, text)
	}
	all, err := load(t, "rules: []")
	require.NoError(t, err)
	assert.Empty(t, all)
}

// TestFind: the first rule that fits holds, and a star is no more than one name.
func TestFind(t *testing.T) {
	all, err := load(t, `rules:
- {namespace: a, service_account: x, agents: [one, "b-*"], access: read}
- {namespace: "a*", service_account: "*", agents: [one], prefix: /srv, definition: {user: "7"}}
`)
	require.NoError(t, err)
	for _, c := range []struct {
		namespace, account string
		agent              scope.ID
		rule               int // -1: none
	}{
		{"a", "x", "one", 0}, {"a", "x", "b-1", 0}, {"a", "y", "one", 1}, {"ab", "x", "one", 1}, {"a", "x", "two", -1}, {"b", "x", "one", -1},
		{"a", "y", "b-1", -1}, {"a/b", "x", "one", -1}, {"", "x", "one", -1},
	} {
		got, err := all.Find(Pod{Namespace: c.namespace, Account: c.account}, c.agent)
		if c.rule < 0 {
			var refused *Refused
			assert.ErrorAs(t, err, &refused, "%+v", c)
			continue
		}
		require.NoError(t, err, "%+v", c)
		assert.Equal(t, all[c.rule], got, "%+v", c)
	}
	text, err := all[1].Text("one", "")
	require.NoError(t, err)
	assert.Contains(t, text, "name: one\ndir: /srv/one\nuser: \"7\"\n")
	text, err = all[0].Text("one", "")
	assert.NoError(t, err)
	assert.Empty(t, text, "the operator's own")
}

// TestCheckNarrow: a pod's author has two keys.
func TestCheckNarrow(t *testing.T) {
	assert.NoError(t, CheckNarrow("view: {access: read}\nprotect: ['*']\n"))
	for _, text := range []string{"", "- x", "dir: /", "user: '0'", "view: {}\nnetwork: host", "mcp_servers: {}", "agents: {x: {}}", "x: &a y\n"} {
		assert.Error(t, CheckNarrow(text), text)
	}
}
