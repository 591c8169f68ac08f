package amend

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// TestAnswer: always writes the access into the rules that ask about a path, and into no other; a lent root becomes the agent's.
func TestAnswer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		keys, root, rel string
		access          scope.Access
		want            string
	}{
		"read": {"view:\n  paths:\n    docs/**: ask # why\n    other: ask\n", "", "docs/a", scope.Read, "view:\n  paths:\n    docs/**: read # why\n    other: ask\n"},
		"two rules": {"view: {paths: {docs/**: ask, '**/a': ask, x: hide}}", "", "docs/a", scope.Write,
			"view: {paths: {docs/**: write, '**/a': write, x: hide}}"},
		"a root":         {"view: {roots: [{dir: /o}, {dir: /r, access: ask, changes: direct}]}", "/r", ".", scope.Write, "view: {roots: [{dir: /o}, {dir: /r, access: write, changes: direct}]}"},
		"a lent one":     {"view: {roots: [{dir: /o}]}", "/r d", ".", scope.Write, "view: {roots: [{dir: /o}, {dir: \"/r d\", access: write}]}"},
		"the first root": {"view: {access: read}", "/r", ".", scope.Write, "view: {access: read, roots: [{dir: /r, access: write}]}"},
		"a path of a root": {"view: {roots: [{dir: /r, access: read, paths: {a: ask, b: ask}}]}", "/r", "a/x", scope.Read,
			"view: {roots: [{dir: /r, access: read, paths: {a: read, b: ask}}]}"},
		"the agent's rule in a root": {"view: {roots: [{dir: /r}], paths: {a: ask}}", "/r", "a", scope.Write, "view: {roots: [{dir: /r}], paths: {a: write}}"},
	} {
		d, err := Open(agentOf(t, test.keys), "a")
		require.NoError(t, err, name)
		require.NoError(t, d.Answer(test.root, test.rel, test.access), name)
		_, after := d.Changes()
		assert.Contains(t, string(after), test.want, name)
	}
}
