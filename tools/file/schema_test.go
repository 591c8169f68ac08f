package file

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools/file/message"
	filetree "github.com/scopefs/scopefs/tools/file/tree"
	"github.com/scopefs/scopefs/tools/file/worker"
)

// TestTools makes every tool, and sees that each argument is described and bounded.
func TestTools(t *testing.T) {
	all, err := New(worker.New(nil)).Tools()
	require.NoError(t, err)
	require.Len(t, all, 12)
	for _, tool := range all {
		_, err := filetree.Below("/")(ctx(), &message.Request{Op: tool.Name, Args: json.RawMessage("0")})
		assert.ErrorContains(t, err, "arguments", "the worker knows %s", tool.Name)
		assert.NotEmpty(t, tool.About)
		assert.NotEmpty(t, tool.Hints.Title)
		for name, p := range tool.Input.Properties {
			switch p.Type {
			case "string":
				assert.True(t, p.MaxLength != nil || p.Enum != nil, "%s.%s", tool.Name, name)
			case "integer":
				assert.True(t, p.Minimum != nil && p.Maximum != nil, "%s.%s", tool.Name, name)
			case "array":
				assert.NotNil(t, p.MaxItems, "%s.%s", tool.Name, name)
			}
		}
	}
}
