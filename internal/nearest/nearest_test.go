package nearest

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOf(t *testing.T) {
	names := []string{"bash", "read_file", "write_file", "list_dir", "mcp:docs:search", "process_read"}
	for word, want := range map[string]string{
		"readfile": "read_file", "read_fiel": "read_file", "Bash": "bash", "bsah": "bash", "write": "write_file", "list": "list_dir",
		"mcp:doc:search": "mcp:docs:search", "search": "mcp:docs:search", "delegate": "", "": "", "x": "", "no_such": "",
	} {
		assert.Equal(t, want, Of(word, names), word)
	}
}
