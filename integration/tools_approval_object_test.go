package integration

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestApprovalsOfObjects: what is granted for a link is granted for what it led
// to, though something else has the same content. All is changed through the view,
// which sees at once what is done there.
func TestApprovalsOfObjects(t *testing.T) {
	h := newHost(t, map[string]string{"a": strings.Replace(askWrite, "write_file", "write_file, read_file, delete_file", 1)})
	plant(t, h.view("a"), "one/f=same", "two/f=same", "l => one/f", "d => one", "later => none/x")
	point := func(name, to string) {
		t.Helper()
		require.NoError(t, os.Remove(h.view("a", name)))
		require.NoError(t, os.Symlink(to, h.view("a", name)))
	}
	u := h.connect("a")
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
		plant(t, h.view("a"), "one/f=same", "two/f=same", "empty/")
		require.NoError(t, os.RemoveAll(h.view("a", "one/new")))
		point(c.link, c.a)
		id := u.waits(c.tool, c.args)
		assert.Equal(t, id, u.waits(c.tool, c.args))
		assert.Contains(t, h.must("approvals", "list"), "(is "+strings.Split(c.a, "/")[0], "the operator sees where it leads")
		h.must("approvals", "approve", id)
		before := picture(t, h.view("a", "two"))
		point(c.link, c.b)
		assert.NotEqual(t, id, u.waits(c.tool, c.args), "%s %v", c.tool, c.args)
		assert.Equal(t, before, picture(t, h.view("a", "two")), "%s %v", c.tool, c.args)
		assert.NoFileExists(t, h.view("a", "none/y"))
		point(c.link, c.a)
		u.call(c.tool, c.args)
	}
	// A file of the same name and content is another.
	plant(t, h.view("a"), "one/f=same")
	point("l", "one/f")
	write := args{"path": "one/f", "content": "new"}
	id := u.waits("write_file", write)
	h.must("approvals", "approve", id)
	plant(t, h.view("a"), "one/g=same")
	require.NoError(t, os.Rename(h.view("a", "one/g"), h.view("a", "one/f")))
	assert.NotEqual(t, id, u.waits("write_file", write))
	assert.Equal(t, "same", readAll(t, h.view("a", "one/f")))
}
