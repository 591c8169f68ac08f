package callfs_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/fs/callfs"
)

// TestNames refuses names that no file can have.
func TestNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "a\x00b", strings.Repeat("x", 256)} {
		_, err := callfs.New(map[string][]byte{name: nil})
		assert.Error(t, err, "%q", name)
	}
}
