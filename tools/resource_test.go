package tools

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
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
		strategy scope.Strategy
		args     string
		want     []string
		code     Code
		verdict  audit.Verdict
	}{
		"keys":          {scope.Keys, `{"key": "k", "more": ["b:k", "*"], "part": "p"}`, []string{"a:k", "a:b%3Ak", "a:%2A", "a:p"}, "", audit.Allow},
		"whole part":    {scope.Keys, `{"key": "k"}`, []string{"a:k", "a:"}, "", audit.Allow},
		"empty key":     {scope.Keys, `{"key": ""}`, nil, Invalid, audit.Deny},
		"NUL":           {scope.Keys, `{"key": "a\u0000b"}`, nil, Invalid, audit.Deny},
		"up":            {scope.Prefix{Base: "s3"}, `{"key": "../b/k"}`, nil, OutsideScope, audit.Violation},
		"up in a list":  {scope.Prefix{Base: "s3"}, `{"key": "k", "more": ["x", "/b"]}`, nil, OutsideScope, audit.Violation},
		"wildcard":      {scope.Subjects{}, `{"key": "b.>"}`, nil, Invalid, audit.Deny},
		"two for one":   {sameName{}, `{"key": "k"}`, nil, OutsideScope, audit.Violation},
		"not a string":  {scope.Keys, `{"key": {"name": "b:k"}}`, nil, Invalid, audit.Deny},
		"name smuggled": {scope.Keys, `{"key": "k", "name": "b:k"}`, nil, Invalid, audit.Deny},
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
	_, err = NewScoped(nil, "keys", "names", Hints{}, keyNamesOf)
	assert.ErrorContains(t, err, "strategy")
	_, err = NewScoped(scope.Keys, "none", "names", Hints{}, func(context.Context, Env, struct{}) (keyNames, error) { return keyNames{}, nil })
	assert.ErrorContains(t, err, "strategy")
}
