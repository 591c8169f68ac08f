package tools

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestNames: arguments name a path as a word, relative to the view or below /workspace.
func TestNames(t *testing.T) {
	for text, want := range map[string]bool{
		`{"command":"echo 1 >src/f.go"}`:          true,
		`{"command":"rm ./src/f.go"}`:             true,
		`{"path":"/workspace/src/f.go"}`:          true,
		`{"path":"src/f.go"}`:                     true,
		`{"command":"sed -i s/x/y/ src/*.go"}`:    false,
		`{"command":"cat src/f.gone other/f.go"}`: false,
		`{"command":"cat lib/src/f.go"}`:          false,
		`{"command":"cat src/f.go.bak;src/f.go"}`: true,
	} {
		a, err := parse([]byte(text))
		assert.Nil(t, err)
		assert.Equal(t, want, a.names("src/f.go", false), text)
	}
}
