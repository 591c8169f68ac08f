package tools

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestApprovalsOfObjects: what is granted for a link is granted for what it led
// to, though something else has the same content. All is changed through the view,
// which sees at once what is done there.
func TestApprovalsOfObjects(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": strings.Replace(harness.AskWrite, "write_file", "write_file, read_file, delete_file", 1)})
	harness.Plant(t, h.View("a"), "one/f=same", "two/f=same", "l => one/f", "d => one", "later => none/x")
	point := func(name, to string) {
		t.Helper()
		require.NoError(t, os.Remove(h.View("a", name)))
		require.NoError(t, os.Symlink(to, h.View("a", name)))
	}
	u := h.Connect("a")
	for _, c := range []struct {
		tool       string
		args       args
		link, a, b string
	}{
		{"write_file", args{"path": "l", "content": "same", "mode": "append"}, "l", "one/f", "two/f"},
		{"write_file", args{"path": "d/f", "content": "same"}, "d", "one", "two"},
		{"write_file", args{"path": "d/new", "content": "x"}, "d", "one", "two"},
		{"edit_file", args{"path": "l", "edits": []args{{"old_text": "same", "new_text": "other"}}}, "l", "one/f", "two/f"},
		{"read_file", args{"path": "l"}, "l", "one/f", "two/f"},
		{"delete_file", args{"path": "d/f"}, "d", "one", "two"},
		{"move", args{"from": "d/f", "to": "moved"}, "d", "one", "two"},
		{"move", args{"from": "two/f", "to": "d/f", "overwrite": true}, "d", "one", "empty"},
		{"write_file", args{"path": "later", "content": "x"}, "later", "none/x", "none/y"},
	} {
		harness.Plant(t, h.View("a"), "one/f=same", "two/f=same", "empty/")
		require.NoError(t, os.RemoveAll(h.View("a", "one/new")))
		point(c.link, c.a)
		id := u.Waits(c.tool, c.args)
		assert.Equal(t, id, u.Waits(c.tool, c.args))
		assert.Contains(t, h.Must("approvals", "list"), "(is "+strings.Split(c.a, "/")[0], "the operator sees where it leads")
		h.Must("approvals", "approve", id)
		before := harness.Picture(t, h.View("a", "two"))
		point(c.link, c.b)
		assert.NotEqual(t, id, u.Waits(c.tool, c.args), "%s %v", c.tool, c.args)
		assert.Equal(t, before, harness.Picture(t, h.View("a", "two")), "%s %v", c.tool, c.args)
		assert.NoFileExists(t, h.View("a", "none/y"))
		point(c.link, c.a)
		u.Call(c.tool, c.args)
	}
	// A file of the same name and content is another.
	harness.Plant(t, h.View("a"), "one/f=same")
	point("l", "one/f")
	write := args{"path": "one/f", "content": "new"}
	id := u.Waits("write_file", write)
	h.Must("approvals", "approve", id)
	harness.Plant(t, h.View("a"), "one/g=same")
	require.NoError(t, os.Rename(h.View("a", "one/g"), h.View("a", "one/f")))
	assert.NotEqual(t, id, u.Waits("write_file", write))
	assert.Equal(t, "same", harness.ReadAll(t, h.View("a", "one/f")))
}
