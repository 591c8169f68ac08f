package report

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/tools/approvals"
)

// TestDescribed: an agent's text stays behind the margin, in its rows, and the page counts
// what it omits.
func TestDescribed(t *testing.T) {
	hostile := "\x1b[2J\x1b]0;x\a\r\u202e\u2028\u009b31m\b[y]es\nbash of b, x, by y\n" + strings.Repeat("w", 5000) + "\n" + strings.Repeat("界", 500) + "\n" + strings.Repeat("n\n", 100)
	arguments, err := json.Marshal(map[string]string{"command": hostile, "path": hostile, "x\n" + hostile: hostile})
	assert.NoError(t, err)
	for name, p := range map[string]approvals.Approval{
		"command": {Tool: "bash", Kind: approvals.KindCommand, Arguments: arguments},
		"diff":    {Tool: "edit_file", Path: hostile, Object: approvals.Object{Path: hostile}, Arguments: arguments, Changes: &approvals.Changes{Diff: hostile, Note: hostile, Cut: 7}},
		"note":    {Tool: "write_file", Path: "f", Arguments: arguments, Changes: &approvals.Changes{Note: hostile}},
		"server":  {Tool: "mcp:s:" + hostile, Arguments: arguments, Preview: hostile},
		"signed":  {Tool: "ssh:sign", Arguments: []byte(strings.Replace(string(arguments), `"command"`, `"text"`, 1))},
	} {
		for _, lines := range []int{MaxShownLines, 0} {
			text := Call(p, lines, 80)
			for _, bad := range []string{"\x1b", "\r", "\a", "\b", "\u202e", "\u2028", "\u009b", "\t"} {
				assert.NotContains(t, text, bad, name)
			}
			rows := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
			for i, row := range rows {
				if i > 0 {
					assert.Regexp(t, `^  ([@!|$:<] |asked |of )`, row, name)
					assert.LessOrEqual(t, len(strings.ReplaceAll(row, "界", "ww")), 120, name)
				}
			}
			assert.Equal(t, lines > 0, strings.Contains(text, "more lines are left out") || strings.Contains(text, "more characters of this line"), name)
			assert.Equal(t, lines == 0, strings.Count(text, "w") > 4999, name)
			if lines > 0 {
				assert.Less(t, len(rows), 200, name)
			}
		}
	}
	d := approvals.Approval{Tool: "edit_file", Path: "f", Arguments: json.RawMessage(`{"path":"f","edits":[],"if_match":"h"}`), Changes: &approvals.Changes{Diff: "--- a/f\n+++ b/f\n-\ta\n+b\n", Cut: 5}}
	text := Call(d, MaxShownLines, 80)
	assert.Contains(t, text, "  | --- a/f\n  | +++ b/f\n  | -    a\n  | +b\n  ! 5 bytes of the diff are left out")
	assert.Contains(t, text, `  :   "if_match": "h"`)
	assert.Contains(t, text, `  :   "edits": []`)
	d = approvals.Approval{Tool: "ssh:sign", Arguments: json.RawMessage(`{"text":"tree f1\nauthor A \u003ca@b\u003e\n"}`)}
	assert.Contains(t, Call(d, MaxShownLines, 80), "  | tree f1\n  | author A <a@b>\n  asked")
}

// TestCallForged: neither a second member of nearly the same name nor the diff of a sandbox that an agent controls takes the place
// of what the tool gets.
func TestCallForged(t *testing.T) {
	text := Call(approvals.Approval{Tool: "x", Kind: approvals.KindCommand, Arguments: json.RawMessage(`{"command":"rm -rf x","Command":"ls"}`)}, 0, 80)
	assert.Contains(t, text, "rm -rf x")
	text = Call(approvals.Approval{Tool: "write_file", Path: "f", Arguments: json.RawMessage(`{"path":"f","content":"evil"}`),
		Changes: &approvals.Changes{Diff: "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+good\n"}}, 0, 80)
	assert.Contains(t, text, "evil")
	text = Call(approvals.Approval{Tool: "move", Path: "a", Arguments: json.RawMessage(`{"path":"a","to":"b"}`), ReplacedObject: approvals.Object{Path: "secret"}}, 0, 80)
	assert.Contains(t, text, "a -> b (is secret)")
	text = About(approvals.Approval{Tool: "bash", Kind: approvals.KindCommand, Arguments: json.RawMessage(`{"command":"rm -rf x","Command":"ls"}`)})
	assert.Contains(t, text, "rm -rf x")
}
