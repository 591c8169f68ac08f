package scope

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestParseID(t *testing.T) {
	for id, ok := range map[string]bool{
		"a": true, "a1": true, "0-a": true, strings.Repeat("x", 63): true,
		"": false, "-a": false, "A": false, "a_b": false, "a/b": false, "..": false, "a\x00": false, "ä": false, strings.Repeat("x", 64): false,
	} {
		_, err := ParseID(id)
		assert.Equal(t, ok, err == nil, "%q", id)
		if !ok {
			assert.ErrorIs(t, err, ErrInvalidID)
		}
	}
}
