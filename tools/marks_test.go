package tools

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
)

func marked(t *testing.T, text string) Marks {
	t.Helper()
	if text == "" {
		return Marks{}
	}
	m, err := ParseMarks(json.RawMessage(text))
	require.NoError(t, err)
	return m
}

// divided returns a set of agent a with a tool that answers with text, or with its
// arguments.
func divided(t *testing.T, d *desk, resources, results, text string) *Set {
	t.Helper()
	tool := Divided("mine", "about", Hints{}, &jsonschema.Schema{Type: "object"}, marked(t, resources), marked(t, results),
		func(_ context.Context, _ Env, args json.RawMessage) (Result, error) {
			if text != "" {
				args = json.RawMessage(text)
			}
			return Result{Structured: args, Content: []Content{{Text: "raw " + string(args)}}}, nil
		})
	set, err := NewSet(d.gate(t, ""), tool)
	require.NoError(t, err)
	return set
}

// TestDividedArguments: a program gets names of the agent's part wherever it marked a
// resource, and never an argument that it could take for one.
func TestDividedArguments(t *testing.T) {
	const nested = `{"entries/*/name": "keys", "where/prefix?": "keys"}`
	for name, c := range map[string]struct {
		marks, args, want string
		code              Code
		verdict           audit.Verdict
	}{
		"key":                {`{"name": "keys"}`, `{"name": "b:k", "text": "<&>", "n": 12345678901234567890}`, `{"n":12345678901234567890,"name":"a:b%3Ak","text":"<&>"}`, "", audit.Allow},
		"whole part":         {`{"prefix?": "keys"}`, `{}`, `{"prefix":"a:"}`, "", audit.Allow},
		"file":               {`{"db": "file"}`, `{}`, `{"db":"agent_a.db"}`, "", audit.Allow},
		"another file":       {`{"db": "file"}`, `{"db": "agent_b.db"}`, ``, OutsideScope, audit.Violation},
		"up":                 {`{"path": "prefix"}`, `{"path": "../b/x"}`, ``, OutsideScope, audit.Violation},
		"wildcard":           {`{"on": "subjects"}`, `{"on": "b.>"}`, ``, Invalid, audit.Deny},
		"none":               {`{"channel": "none"}`, `{"channel": "team"}`, `{"channel":"team"}`, "", audit.Allow},
		"nothing marked":     {`{}`, `{"name": "b:k"}`, `{"name":"b:k"}`, "", audit.Allow},
		"missing":            {`{"name": "keys"}`, `{"text": "x"}`, ``, Invalid, audit.Deny},
		"empty":              {`{"name": "keys"}`, `{"name": ""}`, ``, Invalid, audit.Deny},
		"null":               {`{"prefix?": "keys"}`, `{"prefix": null}`, ``, Invalid, audit.Deny},
		"number":             {`{"name": "keys"}`, `{"name": 7}`, ``, Invalid, audit.Deny},
		"list":               {`{"name": "keys"}`, `{"name": ["b:k"]}`, ``, Invalid, audit.Deny},
		"object":             {`{"name": "keys"}`, `{"name": {"name": "b:k"}}`, ``, Invalid, audit.Deny},
		"twice":              {`{"name": "keys"}`, `{"name": "k", "name": "b:k"}`, ``, Invalid, audit.Deny},
		"twice, escaped":     {`{"name": "keys"}`, `{"name": "k", "n\u0061me": "b:k"}`, ``, Invalid, audit.Deny},
		"other letters":      {`{"name": "keys"}`, `{"name": "k", "NAME": "b:k"}`, ``, Invalid, audit.Deny},
		"other letters, s":   {`{"keys/*": "keys"}`, `{"keys": ["k"], "keyſ": ["b:k"]}`, ``, Invalid, audit.Deny},
		"other letters only": {`{"prefix?": "keys"}`, `{"Prefix": "b:"}`, ``, Invalid, audit.Deny},
		"nested":             {nested, `{"entries": [{"name": "b:k"}, {"name": "k", "n": 1}], "where": {}}`, `{"entries":[{"name":"a:b%3Ak"},{"n":1,"name":"a:k"}],"where":{"prefix":"a:"}}`, "", audit.Allow},
		"nested, missing":    {nested, `{"entries": [{"name": "k"}, {}], "where": {}}`, ``, Invalid, audit.Deny},
		"nested, no object":  {nested, `{"entries": [], "where": "b:"}`, ``, Invalid, audit.Deny},
		"nested, no filter":  {nested, `{"entries": []}`, ``, Invalid, audit.Deny},
		"nested, no list":    {nested, `{"entries": {"0": {"name": "b:k"}}, "where": {}}`, ``, Invalid, audit.Deny},
		"nested, other":      {nested, `{"entries": [{"name": "k", "Name": "b:k"}], "where": {}}`, ``, Invalid, audit.Deny},
		"list in a list":     {`{"keys/*": "keys"}`, `{"keys": ["k", ["b:k"]]}`, ``, Invalid, audit.Deny},
		"long":               {`{"name": "keys"}`, `{"name": "` + strings.Repeat("k", 1025) + `"}`, ``, Invalid, audit.Deny},
	} {
		t.Run(name, func(t *testing.T) {
			d := &desk{}
			r, err := divided(t, d, c.marks, "", "").Call(t.Context(), Call{Tool: "mine", Args: json.RawMessage(c.args)})
			assert.Equal(t, c.verdict, d.events[0].Verdict)
			if c.code == "" {
				require.NoError(t, err)
				assert.Equal(t, c.want, string(r.Structured))
				return
			}
			e, ok := errors.AsType[*Error](err)
			require.True(t, ok, "%v", err)
			assert.Equal(t, c.code, e.Code, e.Message)
			assert.Len(t, d.events, 1, "it ran")
		})
	}
}

// TestDividedResults: marked names become the agent's keys, and one of another agent makes
// the call fail, without a word of it to the agent.
func TestDividedResults(t *testing.T) {
	const marks = `{"names/*": "keys", "first": "keys"}`
	for name, c := range map[string]struct{ result, want, cause string }{
		"own":         {`{"names": ["a:k", "a:b%3Ak"], "first": null, "n": 5}`, `{"first":null,"n":5,"names":["k","b:k"]}`, ""},
		"absent":      {`{"n": 1}`, `{"n":1}`, ""},
		"foreign":     {`{"names": ["a:k", "b:secret"]}`, "", "the result has a name that is not in the agent's part"},
		"unprefixed":  {`{"first": "secret"}`, "", "the result has a name that is not in the agent's part"},
		"longer id":   {`{"first": "ab:secret"}`, "", "the result has a name that is not in the agent's part"},
		"not encoded": {`{"first": "a:b:k"}`, "", "the result has a name that is not in the agent's part"},
		"number":      {`{"first": 3}`, "", "the result has something other than a text where it marks a name"},
		"list":        {`{"first": ["b:secret"]}`, "", "the result has something other than a text where it marks a name"},
		"no list":     {`{"names": {"b:secret": 1}}`, "", "the result has something other than a list where it marks one"},
		"no object":   {`["b:secret"]`, "", "the result has something other than an object where it marks one"},
	} {
		t.Run(name, func(t *testing.T) {
			d := &desk{}
			r, err := divided(t, d, "{}", marks, c.result).Call(t.Context(), Call{Tool: "mine"})
			if c.cause == "" {
				require.NoError(t, err)
				assert.Equal(t, c.want, string(r.Structured))
				require.Len(t, r.Content, 1)
				assert.Equal(t, c.want, r.Content[0].Text, "the text is the structured result's")
				return
			}
			require.Error(t, err)
			assert.NotContains(t, err.Error(), "secret")
			assert.Equal(t, c.cause, d.events[1].Detail)
		})
	}
}

func TestParseMarks(t *testing.T) {
	for text, want := range map[string]string{
		`[]`:                                 "is no object",
		`null`:                               "is no object",
		`{"name": 3}`:                        "is no object",
		`{"name": "mine"}`:                   "is no strategy",
		`{"": "keys"}`:                       "has an empty part",
		`{"*": "keys"}`:                      "does not fit",
		`{"a//b": "keys"}`:                   "has an empty part",
		`{"a": "keys", "a/b": "keys"}`:       "does not fit",
		`{"a/b": "keys", "a/*": "keys"}`:     "does not fit",
		`{"a": "keys", "a?": "keys"}`:        "does not fit",
		`{"a/*?": "keys"}`:                   "may be absent",
		`{"a/*": "file"}`:                    "may be absent",
		`{"a/b/c/d/e/f/g/h/i": "keys"}`:      "longer than",
		`{"a": "keys", "a": "keys", "b": 1}`: "is no object",
	} {
		_, err := ParseMarks(json.RawMessage(text))
		assert.ErrorContains(t, err, want, text)
	}
}

// TestLate: a tool is not listed before it is declared; a call waits for its declaration.
func TestLate(t *testing.T) {
	d := &desk{}
	ready := Divided("mine", "about", Hints{Writes: true}, &jsonschema.Schema{Type: "object"}, marked(t, `{"name": "keys"}`), Marks{},
		func(_ context.Context, _ Env, args json.RawMessage) (Result, error) {
			return Result{Structured: args}, nil
		})
	var now *Tool
	failure := error(Errorf(Unavailable, "the store does not work").Because(errors.New("secret")))
	set, err := NewSet(d.gate(t, ""), Late("mine", func() *Tool { return now }, func(context.Context) (*Tool, error) {
		if failure == nil {
			now = &ready
		}
		return now, failure
	}))
	require.NoError(t, err)
	assert.Empty(t, set.List())
	_, err = set.Call(t.Context(), Call{Tool: "mine", Args: json.RawMessage(`{"name": "k"}`)})
	require.ErrorContains(t, err, "the store does not work")
	assert.NotContains(t, err.Error(), "secret")
	assert.Equal(t, "secret", d.events[0].Detail)
	failure = nil
	r, err := set.Call(t.Context(), Call{Tool: "mine", Args: json.RawMessage(`{"name": "k"}`)})
	require.NoError(t, err)
	assert.JSONEq(t, `{"name":"a:k"}`, string(r.Structured))
	require.Len(t, set.List(), 1)
	assert.True(t, set.List()[0].Hints.Writes)
}
