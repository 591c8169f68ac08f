package pages

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/devices"
	"github.com/scopefs/scopefs/tools/approvals"
)

// shownOf returns the inbox with one request.
func shownOf(t *testing.T, p approval) string {
	t.Helper()
	s, err := New(api.NewClient(config.Paths{Run: t.TempDir()}), nil, "/root")
	require.NoError(t, err)
	var text bytes.Buffer
	require.NoError(t, s.templates[devices.All]["inbox"].ExecuteTemplate(&text, "layout", page{Name: "inbox", Data: inboxPage{Items: []item{itemOf(p)}}}))
	return text.String()
}

func arguments(t *testing.T, of any) json.RawMessage {
	t.Helper()
	text, err := json.Marshal(of)
	require.NoError(t, err)
	return text
}

// TestWholeRequest: the end of a request is shown as its beginning, or the approval says that it is not.
func TestWholeRequest(t *testing.T) {
	for _, long := range []string{strings.Repeat("a", 3*maxShown), strings.Repeat("a ", maxShown) + strings.Repeat("\n", maxShown)} {
		for what, p := range map[string]approval{
			"command":  {Kind: approvals.KindCommand, Arguments: arguments(t, map[string]string{"command": long + "the-end"})},
			"argument": {Tool: "x", Arguments: arguments(t, map[string]string{"x": long + "the-end"})},
			"diff": {Tool: "write_file", Path: "f", Arguments: arguments(t, map[string]string{"path": "f"}),
				Changes: &approvals.Changes{Diff: "--- a/f\n+++ b/f\n@@ -0,0 +1 @@\n+" + strings.ReplaceAll(long, "\n", " ") + "the-end\n"}},
		} {
			text := shownOf(t, p)
			assert.Contains(t, text, "the-end", what)
			assert.NotContains(t, text, `name="partial"`, what)
			assert.NotContains(t, text, "more bytes", what)
		}
	}
	huge := strings.Repeat("a\n", maxArguments)
	for what, p := range map[string]approval{
		"command":  {Kind: approvals.KindCommand, Arguments: arguments(t, map[string]string{"command": huge})},
		"argument": {Tool: "x", Arguments: arguments(t, map[string]string{"x": huge})},
		"changes":  {Tool: "commit", Content: "hash", Changes: &approvals.Changes{Diff: "@@ -0,0 +1,9 @@\n+a\n", Cut: 9}},
	} {
		text := shownOf(t, p)
		assert.Less(t, len(text), 4*maxArguments, what)
		assert.Contains(t, text, `name="partial" value="1" required`, what)
		assert.NotContains(t, text, `name="item"`, "%s is in no batch", what)
	}
}

// TestForgedParts: neither a second member of nearly the same name nor the diff of a sandbox that an agent controls takes the
// place of what the tool gets.
func TestForgedParts(t *testing.T) {
	text := shownOf(t, approval{Kind: approvals.KindCommand, Arguments: json.RawMessage(`{"command":"rm -rf x","Command":"ls"}`)})
	assert.Contains(t, text, "rm -rf x")
	text = shownOf(t, approval{Tool: "write_file", Path: "f", Arguments: arguments(t, map[string]string{"path": "f", "content": "evil"}),
		Changes: &approvals.Changes{Diff: "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+good\n"}})
	assert.Contains(t, text, "evil")
}
