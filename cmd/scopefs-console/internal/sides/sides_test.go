package sides

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestRows: lines stand beside each other, what differs in them is hot, and a text cannot end its own hunk.
func TestRows(t *testing.T) {
	rows, left := Rows("--- a/f\n+++ b/f\n@@ -1,4 +1,4 @@\n same\n-old wörd here\n-gone\n---- a/g\n+old wird here\n++++ b/g\n+@@ -1 +1 @@\n\\ No newline at end of file\n", 100)
	assert.Zero(t, left)
	assert.Equal(t, []Row{
		{Own: "--- a/f"}, {Own: "+++ b/f"}, {Own: "@@ -1,4 +1,4 @@"},
		{Old: Side{1, []Part{{Text: "same"}}, true}, New: Side{1, []Part{{Text: "same"}}, true}},
		{Old: Side{2, []Part{{"old w", false, ""}, {"ö", true, ""}, {"rd here", false, ""}}, false}, New: Side{2, []Part{{"old w", false, ""}, {"i", true, ""}, {"rd here", false, ""}}, false}},
		{Old: Side{3, []Part{{"gone", true, ""}}, false}, New: Side{3, []Part{{"+++ b/g", true, ""}}, false}},
		{Old: Side{4, []Part{{"--- a/g", true, ""}}, false}, New: Side{4, []Part{{"@@ -1 +1 @@", true, ""}}, false}},
		{Own: "\\ No newline at end of file"},
	}, rows)

	rows, _ = Rows("@@ -1,1 +1,1 @@\n-old\n\\ No newline at end of file\n+new\n\\ No newline at end of file\n", 100)
	assert.Len(t, rows, 4)
	assert.Equal(t, Row{Old: Side{1, []Part{{"old", true, ""}}, false}, New: Side{1, []Part{{"new", true, ""}}, false}}, rows[1])

	rows, left = Rows("removed x\n"+strings.Repeat("+a\n", 50), 10)
	assert.Len(t, rows, 10)
	assert.Equal(t, 41, left)
	for _, r := range rows {
		assert.NotEmpty(t, r.Own, "there is no hunk")
	}
	rows, _ = Rows("@@ -99999999999999999999 +1 @@\n-x\n+y", 10)
	assert.Len(t, rows, 2)
}

func FuzzRows(f *testing.F) {
	f.Add("@@ -1,2 +1 @@\n a\n-b\n+é\n")
	f.Fuzz(func(t *testing.T, diff string) {
		rows, left := Rows(diff, 20)
		assert.LessOrEqual(t, len(rows), 41)
		assert.GreaterOrEqual(t, left, 0)
	})
}
