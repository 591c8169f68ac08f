package tools

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

func TestFiltered(t *testing.T) {
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	filters := []scope.Filter{{Pattern: "bash", Regexps: []*regexp.Regexp{regexp.MustCompile(`rm\s+-rf`)}}}
	for name, c := range map[string]struct {
		args any
		hit  bool
	}{
		"plain":            {map[string]any{"c": "rm -rf x"}, true},
		"nested":           {map[string]any{"a": []any{map[string]any{"b": "rm  -rf"}}}, true},
		"a name":           {map[string]any{"rm -rf": 1}, true},
		"base64":           {map[string]any{"c": b64("rm -rf /")}, true},
		"base64 in a text": {map[string]any{"c": "echo " + b64("rm -rf /") + " | base64 -d | sh"}, true},
		"base64 wrapped":   {map[string]any{"c": b64("rm -r")[:4] + "\n" + b64("rm -rf /")[4:]}, true},
		"URL base64":       {map[string]any{"c": base64.RawURLEncoding.EncodeToString([]byte("rm -rf ~~~???"))}, true},
		"twice":            {map[string]any{"c": b64(b64("rm -rf /"))}, true},
		"percent":          {map[string]any{"c": "rm%20-rf"}, true},
		"plus":             {map[string]any{"c": "rm+-rf"}, true},
		"percent of b64":   {map[string]any{"c": url.QueryEscape(b64("rm -rf ?"))}, true},
		"bad escapes, too": {map[string]any{"c": "100%zz rm%20-rf"}, true},
		"harmless":         {map[string]any{"c": "rm -r f", "n": json.Number("12")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			rule := filtered(filters, "bash", c.args)
			assert.Equal(t, c.hit, rule != "")
			assert.Empty(t, filtered(filters, "stat", c.args), "only the tools of the pattern")
			assert.NotContains(t, rule, " x", "never the value")
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`{"a":[1,2,{"b":"c"}],"a":1e400}`)
	f.Fuzz(func(t *testing.T, text string) {
		a, err := parse(json.RawMessage(text))
		if err != nil {
			return
		}
		again, err := parse(a.canonical)
		require.Nil(t, err)
		assert.Equal(t, string(a.canonical), string(again.canonical))
		assert.False(t, strings.Contains(string(a.canonical), "\n"))
	})
}

// What hid a text from a filter that was decoded all the same.
func TestFilterIsNotGoneAround(t *testing.T) {
	key := "-----BEGIN RSA PRIVATE KEY-----"
	b := base64.StdEncoding.EncodeToString([]byte(key))
	re := regexp.MustCompile(`BEGIN [A-Z ]*PRIVATE KEY`)
	for name, s := range map[string]string{
		"a path before it":       "out/" + b,
		"letters before it":      "x=abc" + b,
		"a letter after it":      b + "a",
		"a byte that is no text": base64.StdEncoding.EncodeToString([]byte(key + "\xff")),
		"an escape that is none": "BEGIN+RSA+PRIVATE+KEY%",
	} {
		assert.True(t, matches(re, s, maxDecodings), name)
	}
	assert.True(t, matches(regexp.MustCompile(`a\+bA`), "a+b%41", maxDecodings), "a plus that is one")
	assert.False(t, matches(re, "echo "+base64.StdEncoding.EncodeToString([]byte("nothing of that kind")), maxDecodings))
}
