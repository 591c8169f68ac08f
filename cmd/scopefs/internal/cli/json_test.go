package cli

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPlainJSON(t *testing.T) {
	said := "a\u009b2K\u202eb\u2066\u200b\x7f\U000e0041\u2028 é 日 \U0001f600\\"
	text, err := json.MarshalIndent(map[string]string{"said": said}, "", " ")
	require.NoError(t, err)
	plain := plainJSON(text)
	for _, r := range "\u009b\u202e\u2066\u200b\x7f\U000e0041\u2028" {
		assert.NotContains(t, string(plain), string(r))
	}
	assert.Contains(t, string(plain), " é 日 \U0001f600")
	var back map[string]string
	require.NoError(t, json.Unmarshal(plain, &back))
	assert.Equal(t, said, back["said"])
}
