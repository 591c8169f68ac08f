package tools

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// TestViolationOnce: a call that a link leads outside is one violation in the log,
// whatever the tool does to say what is wrong.
func TestViolationOnce(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	for _, words := range [][]string{
		{"read_file", "path=LINK"}, {"write_file", "path=LINK", "content=x"}, {"edit_file", "path=LINK", `edits:=[{"old_text":"a","new_text":"b"}]`},
		{"list_dir", "path=LINK"}, {"stat", "path=LINK"}, {"glob", "pattern=*", "path=LINK"}, {"grep", "pattern=x", "path=LINK"},
		{"make_dir", "path=LINK/d"}, {"read_file", "path=LINK/x"}, {"write_file", "path=LINK/x", "content=x"}, {"stat", "path=LINK/x"},
		{"delete_file", "path=LINK/x"}, {"delete", "path=LINK/x"}, {"move", "from=LINK/x", "to=y"}, {"move", "from=f", "to=LINK/x"},
		{"copy", "from=LINK/x", "to=y"}, {"copy", "from=f", "to=LINK/x"},
	} {
		name := fmt.Sprint(words)
		require.NoError(t, os.WriteFile(h.Scope("a", "f"), nil, 0o644))
		link := fmt.Sprintf("l%d", len(h.Events("a")))
		require.NoError(t, os.Symlink("../..", h.Scope("a", link)))
		args := []string{"call", "--agent", "a"}
		for _, w := range words {
			args = append(args, strings.ReplaceAll(w, "LINK", link))
		}
		_, errs, code := h.Try(args...)
		var found []string
		for _, e := range h.Events("a") {
			if e.Verdict == audit.Violation && e.Path == link {
				found = append(found, e.Op)
			}
		}
		assert.Len(t, found, 1, "%s: %d %s", name, code, errs)
	}
}
