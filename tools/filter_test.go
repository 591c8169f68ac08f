package tools

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/limit"
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
		"base64 in pieces": {map[string]any{"c": "echo " + b64("r") + b64("m -") + b64("rf") + "|base64 -d"}, true},
		"URL base64":       {map[string]any{"c": base64.RawURLEncoding.EncodeToString([]byte("rm -rf ~~~???"))}, true},
		"base64 twice":     {map[string]any{"c": b64(b64("rm -rf /"))}, false},
		"percent twice":    {map[string]any{"c": "rm%2520-rf"}, false},
		"percent":          {map[string]any{"c": "rm%20-rf"}, true},
		"plus":             {map[string]any{"c": "rm+-rf"}, true},
		"percent of b64":   {map[string]any{"c": url.QueryEscape(b64("rm -rf ?"))}, true},
		"bad escapes, too": {map[string]any{"c": "100%zz rm%20-rf"}, true},
		"harmless":         {map[string]any{"c": "rm -r f", "n": json.Number("12")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			rule, err := filtered(t.Context(), nil, filters, &arguments{value: c.args}, nil)
			assert.Nil(t, err)
			assert.Equal(t, c.hit, rule != "")
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

// examine holds one expression against a text.
func examine(ctx context.Context, examiners *limit.Slots, re, text string) (bool, *Error) {
	filters := []scope.Filter{{Pattern: "*", Regexps: []*regexp.Regexp{regexp.MustCompile(re)}}}
	canonical, _ := json.Marshal(text)
	rule, err := filtered(ctx, examiners, filters, &arguments{value: text, canonical: canonical}, nil)
	return rule != "", err
}

// What hid a text from a filter that was decoded all the same.
func TestFilterIsNotGoneAround(t *testing.T) {
	key := "-----BEGIN RSA PRIVATE KEY-----"
	b := base64.StdEncoding.EncodeToString([]byte(key))
	const re = `BEGIN [A-Z ]*PRIVATE KEY`
	for name, c := range map[string]struct {
		re, text string
		hit      bool
	}{
		"a path before it":       {re, "out/" + b, true},
		"letters before it":      {re, "x=abc" + b, true},
		"a letter after it":      {re, b + "a", true},
		"a byte that is no text": {re, base64.StdEncoding.EncodeToString([]byte(key + "\xff")), true},
		"an escape that is none": {re, "BEGIN+RSA+PRIVATE+KEY%", true},
		"a plus that is one":     {`a\+bA`, "a+b%41", true},
		"a short word":           {`\bsudo\b`, "echo c3Vkbw== | base64 -d", true},
		"a shorter one":          {`^su$`, "c3U=", true},
		"one of four":            {`^sud$`, "x c3Vk y", true},
		"without padding":        {`^sudo$`, "c3Vkbw", true},
		"padded pieces":          {`hunter2-is`, "aHVudGU=cjItaXM=", true},
		"an assignment":          {`^sudo$`, "x=c3Vkbw==", true},
		"an option":              {`hunter2-is`, "--key=aHVudGU=cjItaXM=", true},
		"both alphabets":         {`>>>\?\?\?`, "Pj4+Pz8_", true},
		"an empty form":          {"^$", "x y", false},
		"nothing of that kind":   {re, "echo " + base64.StdEncoding.EncodeToString([]byte("nothing of that kind")), false},
	} {
		hit, err := examine(t.Context(), nil, c.re, c.text)
		assert.Nil(t, err, name)
		assert.Equal(t, c.hit, hit, name)
	}
}

// TestFiltersEnd: there may be too much to decode for all expressions.
func TestFiltersEnd(t *testing.T) {
	d := &desk{}
	var secrets []string
	for i := range 70 {
		secrets = append(secrets, fmt.Sprintf("secret%d", i))
	}
	set, err := NewSet(d.gate(t, "mcp_servers: {s: {command: x}}\nargument_filters: {\"*\": ["+strings.Join(secrets, ", ")+"]}"))
	require.NoError(t, err)
	require.NoError(t, set.Extend([]Tool{Dynamic("mcp:s:t", "", Hints{}, nil, nil)}))
	args := `{"a":"` + strings.Repeat("%252B+", maxArguments/10-100) + ` %2573cret"}`
	_, err = set.Call(t.Context(), Call{Tool: "mcp:s:t", Args: json.RawMessage(args)})
	assert.Equal(t, TooLarge, code(t, err), "it is not run unexamined")
	require.Len(t, d.events, 1)
	assert.Equal(t, ruleFilters, d.events[0].Rule)
}

// tiring is a context that is asked so often before it has ended.
type tiring struct {
	context.Context
	left int
}

func (c *tiring) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

func TestFiltersAreCancelled(t *testing.T) {
	ctx := &tiring{t.Context(), 10}
	_, err := examine(ctx, nil, "s[3]cret", strings.Repeat("many words ", 1000)+"s3cret%20c3NlY3JldA==")
	assert.Nil(t, err, "found at once")
	hit, err := examine(ctx, nil, "s[3]cret", strings.Repeat("many words ", 1000)+"%733cret")
	assert.True(t, hit)
	assert.Nil(t, err)
	_, err = examine(ctx, nil, "s[3]cret", strings.Repeat("many words ", 1000))
	require.NotNil(t, err)
	assert.Equal(t, "the call was cancelled", err.Message)
	assert.GreaterOrEqual(t, ctx.left, -3, "and nothing is done after that")
}

// TestFiltersWaitTheirTurn: long arguments do, short ones need not.
func TestFiltersWaitTheirTurn(t *testing.T) {
	examiners := limit.NewSlots(1)
	done, taken := examiners.Take(t.Context())
	require.NoError(t, taken)
	defer done()
	hit, err := examine(t.Context(), examiners, "s[3]cret", "s3cret")
	assert.True(t, hit)
	assert.Nil(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = examine(ctx, examiners, "s[3]cret", strings.Repeat("x", longExamined)+"s3cret")
	require.NotNil(t, err)
	assert.Equal(t, Internal, err.Code)
}
