package file

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/tools"
)

// TestPreview: the operator sees what the call does, and nothing is done.
func TestPreview(t *testing.T) {
	big := strings.Repeat("x", maxWhole+1)
	for name, test := range map[string]struct {
		before string // "-": there is no file
		in     previewArgs
		diff   string
		note   string
		code   tools.Code
	}{
		"edit":      {before: "a\nb\n", in: previewArgs{Edit: &EditArgs{Path: "f", Edits: []Edit{{OldText: "b", NewText: "B"}}}}, diff: "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+B\n"},
		"no edit":   {before: "a\n", in: previewArgs{Edit: &EditArgs{Path: "f", Edits: []Edit{{OldText: "b", NewText: "B"}}}}, code: tools.Conflict},
		"no file":   {before: "-", in: previewArgs{Edit: &EditArgs{Path: "f"}}, code: tools.NotFound},
		"create":    {before: "-", in: previewArgs{Write: &WriteArgs{Path: "f", Content: "x\n"}}, diff: "--- a/f\n+++ b/f\n@@ -0,0 +1,1 @@\n+x\n"},
		"overwrite": {before: "a\n", in: previewArgs{Write: &WriteArgs{Path: "f", Content: "x\n"}}, diff: "--- a/f\n+++ b/f\n@@ -1,1 +1,1 @@\n-a\n+x\n"},
		"append":    {before: "a\n", in: previewArgs{Write: &WriteArgs{Path: "f", Content: "x\n", Mode: modeAppend}}, diff: "--- a/f\n+++ b/f\n@@ -1,1 +1,2 @@\n a\n+x\n"},
		"same":      {before: "a\n", in: previewArgs{Write: &WriteArgs{Path: "f", Content: "a\n"}}, note: "the file has this content already"},
		"binary":    {before: "a\x00", in: previewArgs{Write: &WriteArgs{Path: "f", Content: "a\n"}}, note: "the file is binary, 2 bytes: no diff is made"},
		"exists":    {before: "a", in: previewArgs{Write: &WriteArgs{Path: "f", Mode: ModeCreate}}, code: tools.Conflict},
		"huge":      {before: big, in: previewArgs{Write: &WriteArgs{Path: "f", Content: "a\n"}}, note: "the file is larger than 8388608 bytes: no diff is made"},
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
	r, err := tr.preview(ctx(), previewArgs{Write: &WriteArgs{Path: "f", Content: strings.Repeat("é\n", 60_000)}})
	assert.NoError(t, err)
	assert.LessOrEqual(t, len(r.Diff), maxDiff)
	assert.Greater(t, r.Cut, 100_000)
}
