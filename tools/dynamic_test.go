package tools

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestForeignSchemasCostNothing: a server's schema is hostile, and so may be the
// agent that calls. Each of these took minutes, or gigabytes.
func TestForeignSchemasCostNothing(t *testing.T) {
	var each [3000]any
	for i := range each {
		each[i] = map[string]any{"const": i}
	}
	many, err := json.Marshal(each)
	require.NoError(t, err)
	var all []Tool
	for name, schema := range map[string]string{
		"cpu":    `{"properties":{"a":{"pattern":"^` + strings.Repeat("(?:a?){1000}", 100) + `b$"}}}`,
		"mem":    `{"properties":{"a":{"pattern":"` + strings.Repeat(`\\pL{1000}`, 300) + `"}}}`,
		"any":    `{"properties":{"b":{"items":{"anyOf":` + string(many) + `}}}}`,
		"unique": `{"properties":{"b":{"uniqueItems":true}}}`,
		"itself": `{"$ref":"#"}`,
	} {
		s := &jsonschema.Schema{}
		require.NoError(t, json.Unmarshal([]byte(schema), s))
		all = append(all, Dynamic("mcp:s:"+name, "", Hints{}, s, func(_ context.Context, _ Env, args json.RawMessage) (Result, error) {
			return Result{Content: []Content{{Text: string(args[:1])}}}, nil
		}))
	}
	d := &desk{}
	set, err := NewSet(d.gate(t, "mcp_servers: {s: {command: x}}"))
	require.NoError(t, err)
	require.NoError(t, set.Extend(all))
	args := json.RawMessage(`{"a":"` + strings.Repeat("a", 1_000_000) + `","b":[` + strings.Repeat("2999,", 49_000) + `1]}`)
	require.Len(t, set.List(), len(all))
	begin := processorTime(t)
	for _, tool := range set.List() {
		r, err := set.Call(t.Context(), Call{Tool: tool.Name, Args: args})
		require.NoError(t, err, tool.Name)
		assert.Equal(t, "{", r.Content[0].Text)
		_, err = set.Call(t.Context(), Call{Tool: tool.Name, Args: json.RawMessage(`[1]`)})
		assert.Equal(t, Invalid, code(t, err), tool.Name)
	}
	assert.Less(t, processorTime(t)-begin, 20*time.Second)
}

// processorTime returns the processor time of this process: getrusage(2).
func processorTime(t *testing.T) time.Duration {
	var use unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &use))
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
