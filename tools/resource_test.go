package tools

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/share"
)

type keyArgs struct {
	Key  Resource   `json:"key"`
	More []Resource `json:"more,omitempty"`
	Part Resource   `json:"part,omitempty" limit:"empty"`
}

type keyNames struct {
	Names []string `json:"names"`
}

func keyNamesOf(_ context.Context, _ Env, in keyArgs) (out keyNames, err error) {
	out.Names = append(out.Names, in.Key.Name())
	for _, r := range in.More {
		out.Names = append(out.Names, r.Name())
	}
	return keyNames{append(out.Names, in.Part.Name())}, nil
}

// TestResources: a tool sees names of its agent's own part only, and what leads
// out of it is refused before anybody is asked, and recorded as a violation.
func TestResources(t *testing.T) {
	for name, c := range map[string]struct {
		strategy share.Strategy
		args     string
		want     []string
		code     Code
		verdict  audit.Verdict
	}{
		"keys":          {share.Keys, `{"key": "k", "more": ["b:k", "*"], "part": "p"}`, []string{"a:k", "a:b%3Ak", "a:%2A", "a:p"}, "", audit.Allow},
		"whole part":    {share.Keys, `{"key": "k"}`, []string{"a:k", "a:"}, "", audit.Allow},
		"empty key":     {share.Keys, `{"key": ""}`, nil, Invalid, audit.Deny},
		"NUL":           {share.Keys, `{"key": "a\u0000b"}`, nil, Invalid, audit.Deny},
		"up":            {share.Prefix{Base: "s3"}, `{"key": "../b/k"}`, nil, OutsideScope, audit.Violation},
		"up in a list":  {share.Prefix{Base: "s3"}, `{"key": "k", "more": ["x", "/b"]}`, nil, OutsideScope, audit.Violation},
		"wildcard":      {share.Subjects{}, `{"key": "b.>"}`, nil, Invalid, audit.Deny},
		"two for one":   {sameName{}, `{"key": "k"}`, nil, OutsideScope, audit.Violation},
		"not a string":  {share.Keys, `{"key": {"name": "b:k"}}`, nil, Invalid, audit.Deny},
		"name smuggled": {share.Keys, `{"key": "k", "name": "b:k"}`, nil, Invalid, audit.Deny},
	} {
		t.Run(name, func(t *testing.T) {
			tool, err := NewScoped(c.strategy, "keys", "names", Hints{}, keyNamesOf)
			require.NoError(t, err)
			d := &desk{}
			set, err := NewSet(d.gate(t, ""), tool)
			require.NoError(t, err)
			r, err := set.Call(t.Context(), Call{Tool: "keys", Args: json.RawMessage(c.args)})
			assert.Equal(t, c.verdict, d.events[len(d.events)-1].Verdict)
			if c.code != "" {
				e, ok := err.(*Error)
				require.True(t, ok, "%v", err)
				assert.Equal(t, c.code, e.Code, e.Message)
				return
			}
			require.NoError(t, err)
			var out keyNames
			require.NoError(t, json.Unmarshal(r.Structured, &out))
			assert.Equal(t, c.want, out.Names)
		})
	}
}

// sameName has one name for all keys.
type sameName struct{}

func (sameName) Apply(scope.ID, string) (string, error)   { return "all", nil }
func (sameName) Enforce(scope.ID, string) (string, error) { return "", nil }

// TestResourcesNeedStrategy: a tool whose inputs name a shared resource cannot
// be made without a strategy, nor one with a strategy that has no such input.
func TestResourcesNeedStrategy(t *testing.T) {
	_, err := New("keys", "names", Hints{}, keyNamesOf)
	assert.ErrorContains(t, err, "strategy")
	_, err = New("keys", "names", Hints{}, func(context.Context, Env, hiddenArgs) (keyNames, error) { return keyNames{}, nil })
	assert.ErrorContains(t, err, "strategy", "JSON reaches a field of an embedded type that is not exported")
	_, err = NewScoped(nil, "keys", "names", Hints{}, keyNamesOf)
	assert.ErrorContains(t, err, "strategy")
	_, err = NewScoped(share.Keys, "none", "names", Hints{}, func(context.Context, Env, struct{}) (keyNames, error) { return keyNames{}, nil })
	assert.ErrorContains(t, err, "strategy")
}

type hidden struct {
	Key Resource `json:"key"`
}

type hiddenArgs struct{ hidden }

// TestResourcesEmbedded: a strategy is applied to the fields that encoding/json finds.
func TestResourcesEmbedded(t *testing.T) {
	tool, err := NewScoped(share.Keys, "keys", "names", Hints{}, func(_ context.Context, _ Env, in hiddenArgs) (keyNames, error) {
		return keyNames{[]string{in.Key.Name()}}, nil
	})
	require.NoError(t, err)
	d := &desk{}
	set, err := NewSet(d.gate(t, ""), tool)
	require.NoError(t, err)
	r, err := set.Call(t.Context(), Call{Tool: "keys", Args: json.RawMessage(`{"key": "b:k"}`)})
	require.NoError(t, err)
	assert.JSONEq(t, `{"names": ["a:b%3Ak"]}`, string(r.Structured))
}

// TestResourcesThatCannotBeScoped: a tool whose Resources the door would not find, or
// would take for the whole part, cannot be made.
func TestResourcesThatCannotBeScoped(t *testing.T) {
	type inMap struct {
		Keys map[string]Resource `json:"keys"`
	}
	_, err := NewScoped(share.Keys, "keys", "names", Hints{}, func(context.Context, Env, inMap) (keyNames, error) { return keyNames{}, nil })
	assert.ErrorContains(t, err, "map")
	type absent struct {
		Key Resource `json:"key,omitempty"`
	}
	_, err = NewScoped(share.Keys, "keys", "names", Hints{}, func(context.Context, Env, absent) (keyNames, error) { return keyNames{}, nil })
	assert.ErrorContains(t, err, "empty")
	type loop struct {
		Next []loop   `json:"next,omitempty"`
		Key  Resource `json:"key"`
	}
	_, err = NewScoped(share.Keys, "keys", "names", Hints{}, func(context.Context, Env, loop) (keyNames, error) { return keyNames{}, nil })
	assert.Error(t, err, "and it ends")
}

// TestServerToolIsNoStoreTool: the tool of an MCP server that has the name of a store's
// tool neither replaces that, nor gets its calls, nor its grants.
func TestServerToolIsNoStoreTool(t *testing.T) {
	var got []string
	theirs := func(name string) Tool {
		return Dynamic(name, "", Hints{}, nil, func(context.Context, Env, json.RawMessage) (Result, error) {
			got = append(got, name)
			return Result{}, nil
		})
	}
	ours, err := NewScoped(share.Keys, "kv_get", "names", Hints{}, keyNamesOf)
	require.NoError(t, err)
	d := &desk{}
	gate := d.gate(t, "")
	gate.Rules = func() Rules { return onlyTool{name: "kv_get"} }
	set, err := NewSet(gate, ours)
	require.NoError(t, err)
	for _, name := range []string{"kv_get", "builtin:kv_get", "mcp", "mcp__s__kv_get", "MCP:s:kv_get", " mcp:s:kv_get"} {
		assert.Error(t, set.Extend([]Tool{theirs(name)}), name)
	}
	require.NoError(t, set.Extend([]Tool{theirs("mcp:s:kv_get"), theirs("mcp::kv_get"), theirs("mcp:builtin:kv_get")}))
	for _, name := range []string{"kv_get", "builtin:kv_get"} {
		_, err := set.Call(t.Context(), Call{Tool: name, Args: json.RawMessage(`{"key": "k"}`)})
		assert.NoError(t, err, name)
	}
	for _, name := range []string{"mcp:s:kv_get", "mcp::kv_get", "mcp:builtin:kv_get", "builtin:mcp:s:kv_get", "builtin:builtin:kv_get"} {
		_, err := set.Call(t.Context(), Call{Tool: name, Args: json.RawMessage(`{"key": "k"}`)})
		assert.Error(t, err, name)
	}
	assert.Empty(t, got)
}

// onlyTool are rules that allow one tool.
type onlyTool struct {
	noRules
	name string
}

func (o onlyTool) Call(name string, _ bool) scope.Decision {
	return scope.Decision{Allow: name == o.name, Rule: "test"}
}
