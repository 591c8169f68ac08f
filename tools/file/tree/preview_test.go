package tree

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/tools/file/message"
)

// TestPreview: the operator sees what the call does, and nothing is done.
func TestPreview(t *testing.T) {
	big := strings.Repeat("x", maxWhole+1)
	for name, test := range map[string]struct {
		before string // "-": there is no file
		in     message.PreviewArgs
		diff   string
		note   string
		code   message.Code
	}{
		"edit":      {before: "a\nb\n", in: message.PreviewArgs{Edit: &message.EditArgs{Path: "f", Edits: []message.Edit{{OldText: "b", NewText: "B"}}}}, diff: "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+B\n"},
		"no edit":   {before: "a\n", in: message.PreviewArgs{Edit: &message.EditArgs{Path: "f", Edits: []message.Edit{{OldText: "b", NewText: "B"}}}}, code: message.Conflict},
		"no file":   {before: "-", in: message.PreviewArgs{Edit: &message.EditArgs{Path: "f"}}, code: message.NotFound},
		"create":    {before: "-", in: message.PreviewArgs{Write: &message.WriteArgs{Path: "f", Content: "x\n"}}, diff: "--- a/f\n+++ b/f\n@@ -0,0 +1,1 @@\n+x\n"},
		"overwrite": {before: "a\n", in: message.PreviewArgs{Write: &message.WriteArgs{Path: "f", Content: "x\n"}}, diff: "--- a/f\n+++ b/f\n@@ -1,1 +1,1 @@\n-a\n+x\n"},
		"append":    {before: "a\n", in: message.PreviewArgs{Write: &message.WriteArgs{Path: "f", Content: "x\n", Mode: message.ModeAppend}}, diff: "--- a/f\n+++ b/f\n@@ -1,1 +1,2 @@\n a\n+x\n"},
		"same":      {before: "a\n", in: message.PreviewArgs{Write: &message.WriteArgs{Path: "f", Content: "a\n"}}, note: "the file has this content already"},
		"binary":    {before: "a\x00", in: message.PreviewArgs{Write: &message.WriteArgs{Path: "f", Content: "a\n"}}, note: "the file is binary, 2 bytes: no diff is made"},
		"exists":    {before: "a", in: message.PreviewArgs{Write: &message.WriteArgs{Path: "f", Mode: message.ModeCreate}}, code: message.Conflict},
		"huge":      {before: big, in: message.PreviewArgs{Write: &message.WriteArgs{Path: "f", Content: "a\n"}}, note: "the file is larger than 8388608 bytes: no diff is made"},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{"f": test.before}
			if test.before == "-" {
				files = nil
			}
			tr := newTree(t, files)
			r, err := tr.preview(ctx(), test.in)
			if test.code != "" {
				assert.Equal(t, test.code, asTold(t, err).Code)
				return
			}
			assert.NoError(t, err)
			assert.Equal(t, test.diff, r.Diff)
			assert.Equal(t, test.note, r.Note)
			hash := hashOf([]byte(test.before))
			if test.before == "-" {
				hash = ""
			} else {
				assert.Equal(t, test.before, tr.content(t, "f"))
			}
			assert.Equal(t, hash, r.Content)
		})
	}
	tr := newTree(t, nil)
	r, err := tr.preview(ctx(), message.PreviewArgs{Write: &message.WriteArgs{Path: "f", Content: strings.Repeat("é\n", 60_000)}})
	assert.NoError(t, err)
	assert.LessOrEqual(t, len(r.Diff), message.MaxDiff)
	assert.Greater(t, r.Cut, 100_000)
}
