package effect

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestConfigures: of what is below .git, git itself writes most.
func TestConfigures(t *testing.T) {
	for rel, want := range map[string]bool{
		"Makefile": true, "sub/package.json": true, ".envrc": true, "a/.vscode/tasks.json": true, "CLAUDE.md": true,
		".git/config": true, ".git/hooks/pre-commit": true, "sub/.git/config": true,
		".git/hooks/pre-commit.sample": false, ".git/index": false, ".git/objects/ab/cd": false,
		"main.go": false, "a.b/c": false, "Makefile.txt": false, "": false,
	} {
		assert.Equal(t, want, Configures(rel), rel)
	}
}
