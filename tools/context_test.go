package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools/approvals"
)

// sees is a tool whose result is what it was given.
func sees(_ context.Context, env Env, params json.RawMessage) (Result, error) {
	envelope, err := json.Marshal(env.Envelope)
	return Result{Content: []Content{{Text: fmt.Sprintf("%s %s %s", params, env.Context.JSON(), envelope)}}}, err
}

const alice = `[{"type":"state","currentUser":"Alice"},{"type":"input","mentionedUser":"Bob"},{"type":"state","_instance":"①","text":"Hello"},{"type":"secret","key":"hunter2"}]`

// scopedSet is a set with declared tools. Its definition says front.
func scopedSet(t *testing.T, d *desk, front string, more ...Tool) (*Set, Gate) {
	t.Helper()
	gate := d.gate(t, front)
	set, err := NewSet(gate, append(more, echo(t, "stat", Hints{}, nil))...)
	require.NoError(t, err)
	var declared []Tool
	for name, properties := range map[string]string{
		"fixed":    `"to":{"type":"string"},"_scopes":{"const":["input"]}`,
		"choice":   `"to":{},"_scopes":{"type":"array","items":{"enum":["state","input"]}}`,
		"none":     `"to":{}`,
		"delegate": `"_scopes":{"const":["state"]},"_delegate":{"const":"Summarizer"},"_module":{"type":"boolean"},"_activity":{"enum":["f","g"]}`,
	} {
		tool, err := Declared(name, "", Hints{}, json.RawMessage(`{"type":"object","additionalProperties":false,"properties":{`+properties+`}}`), sees)
		require.NoError(t, err)
		declared = append(declared, tool)
	}
	require.NoError(t, set.Declare(declared))
	return set, gate
}

func environment(t *testing.T, text string) *scoped.Environment {
	t.Helper()
	env, err := scoped.Parse([]byte(text))
	require.Nil(t, err)
	return env
}

func TestContextOfCalls(t *testing.T) {
	t.Parallel()
	d := &desk{}
	set, _ := scopedSet(t, d, "scopes: {enum: [state, input]}")
	bounded, _ := scopedSet(t, d, "scopes: {enum: [state]}")
	const bob, hers = `{"input":[{"type":"input","mentionedUser":"Bob"}]}`, `{"state":[{"type":"state","currentUser":"Alice"}]}`
	for name, c := range map[string]struct {
		set    *Set
		tool   string
		args   string
		beside string // an envelope beside the arguments
		want   string // "" with an error
		err    string // code, path
	}{
		"fixed":              {set, "fixed", `{"to":"x"}`, ``, `{"to":"x"} ` + bob + ` {}`, ""},
		"fixed, said":        {set, "fixed", `{"_scopes":["input"],"_tool":"fixed"}`, ``, `{} ` + bob + ` {"_tool":"fixed","_scopes":["input"]}`, ""},
		"fixed, other":       {set, "fixed", `{"_scopes":["state"]}`, ``, "", "invalid /_scopes"},
		"another tool":       {set, "fixed", `{"_tool":"choice"}`, ``, "", "invalid /_tool"},
		"choice":             {set, "choice", `{"to":1,"_scopes":["state"],"_instance":"①"}`, ``, `{"to":1} {"state":[{"type":"state","currentUser":"Alice"},{"type":"state","_instance":"①","text":"Hello"}]} {"_scopes":["state"],"_instance":"①"}`, ""},
		"choice, none":       {set, "choice", `{}`, ``, `{} {} {}`, ""},
		"choice, other":      {set, "choice", `{"_scopes":["secret"]}`, ``, "", "denied /_scopes/0"},
		"beside":             {set, "choice", `{"to":1}`, `{"_scopes":["input"]}`, `{"to":1} ` + bob + ` {"_scopes":["input"]}`, ""},
		"twice, the same":    {set, "choice", `{"_scopes":["input"]}`, `{"_scopes":["input"]}`, `{} ` + bob + ` {"_scopes":["input"]}`, ""},
		"twice, other":       {set, "choice", `{"_scopes":["input"]}`, `{"_scopes":["state"]}`, "", "invalid /_scopes"},
		"inside a parameter": {set, "choice", `{"to":{"_scopes":["state"],"_x":1}}`, ``, `{"to":{"_scopes":["state"],"_x":1}} {} {}`, ""},
		"its own context":    {set, "choice", `{"_scopes":["input"]}`, `{"_context":[{"type":"input","x":1}]}`, `{} {"input":[{"type":"input","x":1}]} {"_scopes":["input"]}`, ""},
		"a bad context":      {set, "choice", `{}`, `{"_context":[{"type":"in/put"}]}`, "", "invalid /_context/0/type"},
		"content in a name":  {set, "choice", `{}`, `{"_context":[{"type":"a","key Alice":1,"key Alice":2}]}`, "", "invalid /_context/0/key Alice"},
		"in the arguments":   {set, "choice", `{"_context":[]}`, ``, "", "invalid /_context"},
		"beside, a list":     {set, "choice", `{}`, `[]`, "", "invalid "},
		"beside, unknown":    {set, "choice", `{}`, `{"to":1}`, "", "invalid /to"},
		"unknown":            {set, "choice", `{"__proto__":{}}`, ``, "", "invalid /__proto__"},
		"duplicates":         {set, "choice", `{"_scopes":["state","state"]}`, ``, "", "invalid /_scopes/1"},
		"a name twice":       {set, "choice", `{"_scopes":[],"_scopes":["state"]}`, ``, "", "invalid /_scopes"},
		"nothing offered":    {set, "none", `{"_scopes":["state"]}`, ``, "", "invalid /_scopes"},
		"no context":         {set, "stat", `{"path":"a","text":"x","_scopes":["state"]}`, ``, "", "invalid /_scopes"},
		"no context, beside": {set, "stat", `{"path":"a","text":"x"}`, `{"_instance":"①"}`, "", "invalid /_instance"},
		"not offered":        {set, "fixed", `{"_delegate":"Summarizer"}`, ``, "", "invalid /_delegate"},
		"not its module":     {set, "fixed", `{"_module":true}`, ``, "", "invalid /_module"},
		"const":              {set, "delegate", `{"_module":true,"_activity":"f"}`, ``, `{} ` + hers + ` {"_activity":"f","_delegate":"Summarizer","_module":true}`, ""},
		"const, other":       {set, "delegate", `{"_delegate":"Other"}`, ``, "", "invalid /_delegate"},
		"not in its enum":    {set, "delegate", `{"_activity":"h"}`, ``, "", "invalid /_activity"},
		"a bad parameter":    {set, "fixed", `{"from":"x"}`, ``, "", "invalid "},
		"bound":              {bounded, "fixed", `{}`, ``, "", "denied /_scopes"},
		"bound, choice":      {bounded, "choice", `{"_scopes":["state","input"]}`, ``, "", "denied /_scopes/1"},
		"within the bound":   {bounded, "choice", `{"_scopes":["state"]}`, ``, `{} ` + hers + ` {"_scopes":["state"]}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := c.set.Call(t.Context(), Call{Tool: c.tool, Args: json.RawMessage(c.args), Context: environment(t, alice), Beside: json.RawMessage(c.beside)})
			if c.err != "" {
				var e *Error
				require.ErrorAs(t, err, &e)
				assert.Equal(t, c.err, string(e.Code)+" "+e.Path)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, r.Content[0].Text)
		})
	}
	log, err := json.Marshal(d.events)
	require.NoError(t, err)
	for _, content := range []string{"Alice", "Bob", "hunter2"} {
		assert.NotContains(t, string(log), content, "never content")
	}
}

// TestContextOfTask: a call for another agent gives itself no context: it keeps what its caller gave, or less, whatever carries it.
func TestContextOfTask(t *testing.T) {
	t.Parallel()
	d := &desk{}
	gate := d.gate(t, "scopes: {enum: [state, input]}")
	gate.Chain = "caller>member"
	set, err := NewSet(gate)
	require.NoError(t, err)
	tool, err := Declared("choice", "", Hints{}, json.RawMessage(`{"type":"object","properties":{"_scopes":{"type":"array","items":{"enum":["state","input"]}}}}`), sees)
	require.NoError(t, err)
	require.NoError(t, set.Declare([]Tool{tool}))
	const given = `[{"type":"state","admin":true},{"type":"input","x":1},{"type":"state","admin":false}]`
	for beside, want := range map[string]string{
		``:                `{} {"state":[{"type":"state","admin":true},{"type":"state","admin":false}]} {"_scopes":["state"]}`,
		`{"_context":[]}`: `{} {"state":[]} {"_scopes":["state"]}`,
		`{"_context":[{"type":"state","admin":true}, {"type":"state", "admin":false}]}`: `{} {"state":[{"type":"state","admin":true},{"type":"state","admin":false}]} {"_scopes":["state"]}`,
		`{"_context":[{"type":"input","x":1}]}`:                                         `{} {"state":[]} {"_scopes":["state"]}`,
		`{"_context":[{"type":"state","currentUser":"Admin"}]}`:                         "",
		`{"_context":[{"type":"state","admin":true}]}`:                                  "", // a later message replaces members of it
		`{"_context":[{"type":"other","x":1}]}`:                                         "",
	} {
		r, err := set.Call(t.Context(), Call{Tool: "choice", Args: json.RawMessage(`{"_scopes":["state"]}`), Context: environment(t, given), Beside: json.RawMessage(beside)})
		if want == "" {
			assert.Equal(t, Denied, code(t, err), beside)
			continue
		}
		if assert.NoError(t, err, beside) {
			assert.Equal(t, want, r.Content[0].Text, beside)
		}
	}
	log, err := json.Marshal(d.events)
	require.NoError(t, err)
	assert.NotContains(t, string(log), "Admin", "never content")
}

func TestContextIsRecorded(t *testing.T) {
	t.Parallel()
	d := &desk{}
	set, _ := scopedSet(t, d, "scopes: {enum: [state]}")
	_, err := set.Call(t.Context(), Call{Tool: "choice", Args: json.RawMessage(`{"_scopes":["state"],"_instance":"①"}`), Context: environment(t, alice)})
	require.NoError(t, err)
	begin := d.events[0]
	require.Len(t, begin.Context, 1)
	assert.Equal(t, "①", begin.Instance)
	assert.Equal(t, "state", begin.Context[0].Name)
	assert.Equal(t, 2, begin.Context[0].Messages)
	assert.Equal(t, hash([]byte(`[{"type":"state","currentUser":"Alice"},{"type":"state","_instance":"①","text":"Hello"}]`)), begin.Context[0].Hash)
	_, err = set.Call(t.Context(), Call{Tool: "choice", Args: json.RawMessage(`{"_scopes":["input"]}`), Context: environment(t, alice)})
	require.Equal(t, Denied, code(t, err))
	denied := d.events[len(d.events)-1]
	assert.Equal(t, "context", denied.RuleKind)
	assert.Equal(t, "scopes.enum: [state]", denied.Rule)
	assert.Equal(t, "the agent may not use the scope input", denied.Detail)
}

// TestContextOfOwnTools requires that tools that start programs have the agent's own
// scopes, by their own name and through an alias, and nothing inside the alias's
// arguments.
func TestContextOfOwnTools(t *testing.T) {
	t.Parallel()
	d := &desk{}
	bash := Dynamic("bash", "", Hints{Context: true}, &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{}}, sees)
	type in struct {
		Command map[string]any `json:"command"`
	}
	alias, err := Alias("Bash", "", Hints{}, []string{"bash"}, func(i in) ([]Inner, error) { return []Inner{{Tool: "bash", Args: i.Command}}, nil }, nil)
	require.NoError(t, err)
	const state = `{"state":[{"type":"state","currentUser":"Alice"}]}`
	for name, c := range map[string]struct{ front, tool, args, want string }{
		"choice":             {"scopes: {enum: [state, \"in*\"]}", "bash", `{"_scopes":["state"]}`, `{} ` + state},
		"another":            {"scopes: {enum: [state]}", "bash", `{"_scopes":["secret"]}`, "denied"},
		"fixed":              {"scopes: {const: [state]}", "bash", `{}`, `{} ` + state},
		"no scopes":          {"", "bash", `{"_scopes":["state"]}`, "invalid"},
		"none":               {"scopes: {enum: []}", "bash", `{"_scopes":["state"]}`, "denied"},
		"alias":              {"scopes: {enum: [state]}", "Bash", `{"command":{"x":1},"_scopes":["state"]}`, `{"x":1} ` + state},
		"alias, inside":      {"scopes: {enum: [state]}", "Bash", `{"command":{"_scopes":["state"]}}`, `{"_scopes":["state"]} {}`},
		"alias, more":        {"scopes: {enum: [state]}", "Bash", `{"command":{},"_delegate":"x"}`, "invalid"},
		"alias, another":     {"scopes: {enum: [state]}", "Bash", `{"command":{},"_scopes":["secret"]}`, "denied"},
		"covered by a Bash:": {"scopes: {enum: [state]}", "bash ", `{"_scopes":["state"]}`, "denied"},
	} {
		t.Run(name, func(t *testing.T) {
			tools := []Tool{bash}
			if strings.HasPrefix(c.tool, "B") {
				tools = append(tools, alias)
			}
			set, _ := scopedSet(t, d, c.front, tools...)
			r, err := set.Call(t.Context(), Call{Tool: c.tool, Args: json.RawMessage(c.args), Context: environment(t, alice)})
			if err != nil {
				assert.Equal(t, c.want, string(code(t, err)))
				return
			}
			assert.Contains(t, r.Content[0].Text, c.want)
		})
	}
	set, _ := scopedSet(t, d, "scopes: {enum: [state]}", bash)
	for _, tool := range set.List() {
		if tool.Name == "bash" {
			assert.Equal(t, []any{"state"}, tool.Input.Properties["_scopes"].Items.Enum)
		}
	}
	assert.Empty(t, bash.Input.Properties, "the tool's own schema stays")
}

// TestServerToolsKeepTheirArguments requires that nothing is taken from the arguments
// of a server's tool, and nothing given to it.
func TestServerToolsKeepTheirArguments(t *testing.T) {
	t.Parallel()
	d := &desk{}
	gate := d.gate(t, "")
	gate.Rules = func() Rules { return anything{} }
	set, err := NewSet(gate)
	require.NoError(t, err)
	require.NoError(t, set.Extend([]Tool{Dynamic("mcp:a:b", "", Hints{}, &jsonschema.Schema{Type: "object"}, sees)}))
	r, err := set.Call(t.Context(), Call{Tool: "mcp:a:b", Args: json.RawMessage(`{"_scopes":["state"],"__x":1}`), Context: environment(t, alice)})
	require.NoError(t, err)
	assert.Equal(t, `{"__x":1,"_scopes":["state"]} {} {}`, r.Content[0].Text)
	_, err = set.Call(t.Context(), Call{Tool: "mcp:a:b", Beside: json.RawMessage(`{"_scopes":["state"]}`), Context: environment(t, alice)})
	assert.Equal(t, Invalid, code(t, err))
}

// anything allows every call.
type anything struct{ noRules }

func (anything) Call(string, bool) scope.Decision { return scope.Decision{Allow: true} }

func TestShow(t *testing.T) {
	t.Parallel()
	d := &desk{}
	var told []string
	var broken error
	_, gate := scopedSet(t, d, "")
	gate.Show = func(call string, s scoped.Scoped) (func(), error) {
		told = append(told, "show "+string(s.JSON()))
		return func() { told = append(told, "hide") }, broken
	}
	tool, err := Declared("choice", "", Hints{}, json.RawMessage(`{"type":"object","properties":{"_scopes":{"items":{"enum":["state"]}}}}`),
		func(context.Context, Env, json.RawMessage) (Result, error) { told = append(told, "run"); panic("late") })
	require.NoError(t, err)
	set, err := NewSet(gate)
	require.NoError(t, err)
	require.NoError(t, set.Declare([]Tool{tool}))
	call := func(args string) error {
		_, err := set.Call(t.Context(), Call{Tool: "choice", Args: json.RawMessage(args), Context: environment(t, alice)})
		return err
	}
	assert.Error(t, call(`{"_scopes":["state"]}`))
	assert.Equal(t, []string{`show {"state":[{"type":"state","currentUser":"Alice"}]}`, "run", "hide"}, told)
	told = nil
	assert.Error(t, call(`{}`))
	assert.Equal(t, []string{"run"}, told, "without a context nothing is shown")
	told, broken = nil, errors.New("/run/x: no space")
	err = call(`{"_scopes":["state"]}`)
	assert.Equal(t, Unavailable, code(t, err))
	assert.NotContains(t, err.Error(), "/run")
	assert.Equal(t, []string{`show {"state":[{"type":"state","currentUser":"Alice"}]}`}, told, "what cannot be shown does not run")
}

// TestApprovalOfContext requires that an approval is for exactly what the operator
// was shown, and that a call that was narrowed gets no more.
func TestApprovalOfContext(t *testing.T) {
	t.Parallel()
	for _, front := range []string{"policy: {tools: {ask: [\"*\"]}}", "scopes: {enum: [state, input], ask: [state]}"} {
		d := &desk{}
		set, gate := scopedSet(t, d, front)
		call := func(args, env string) (string, error) {
			r, err := set.Call(t.Context(), Call{Tool: "choice", Args: json.RawMessage(args), Context: environment(t, env)})
			if err != nil {
				return "", err
			}
			return r.Content[0].Text, nil
		}
		asks := func(args, env string) string {
			t.Helper()
			_, err := call(args, env)
			require.Equal(t, ApprovalRequired, code(t, err))
			var e *Error
			require.ErrorAs(t, err, &e)
			return e.ApprovalID
		}
		const args = `{"to":1,"_scopes":["state","input"]}`
		id := asks(args, alice)
		assert.Equal(t, id, asks(args, alice))
		p, err := gate.Approvals.Get(id)
		require.NoError(t, err)
		assert.Len(t, p.Context, 2)
		assert.Contains(t, p.Preview, "Alice")
		assert.NotContains(t, p.Preview, "hunter2")
		stored, err := json.Marshal(gate.Approvals.List())
		require.NoError(t, err)
		assert.NotContains(t, string(stored), "Alice", "content is not stored")
		for _, bad := range [][]string{{"secret"}, {}, {"state", "secret"}} {
			_, err = gate.Approvals.Decide(id, true, approvals.Answer{Scopes: bad}, ok)
			require.Error(t, err)
		}
		_, err = gate.Approvals.Decide(id, true, approvals.Answer{Scopes: []string{"input"}}, ok)
		require.NoError(t, err)
		changed := strings.Replace(alice, "Alice", "Mallory", 1)
		assert.NotEqual(t, id, asks(args, changed), "another state")
		assert.NotEqual(t, id, asks(`{"to":1,"_scopes":["state"]}`, alice), "other scopes")
		assert.NotEqual(t, id, asks(`{"to":1,"_scopes":["state","input"],"_instance":"①"}`, alice), "another instance")
		text, err := call(args, strings.Replace(alice, "hunter2", "hunter3", 1)) // not what was selected
		require.NoError(t, err)
		assert.Equal(t, `{"to":1} {"input":[{"type":"input","mentionedUser":"Bob"}]} {"_scopes":["state","input"]}`, text)
		assert.NotEqual(t, id, asks(args, alice), "once")
		begin := d.events[len(d.events)-4]
		assert.Equal(t, "begin", begin.Outcome)
		require.Len(t, begin.Context, 1)
		assert.Contains(t, begin.Detail, "narrowed from input state")
	}
}

func TestFiltersExamineEnvelopes(t *testing.T) {
	t.Parallel()
	set, _ := scopedSet(t, &desk{}, `argument_filters: {"*": [evil]}`)
	_, err := set.Call(t.Context(), Call{Tool: "choice", Args: json.RawMessage(`{"_instance":"evil"}`)})
	assert.Equal(t, Denied, code(t, err))
}

func TestDeclared(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{
		`{`:                "inputSchema: unexpected end of JSON input",
		`{"type":"array"}`: `inputSchema: type: want "object"`,
		`{"type":"object","properties":{"_scope":{}}}`:                "inputSchema: properties: _scope: names with an underscore are the protocol's, which has no such: rename it",
		`{"type":"object","properties":{"_scopes":{"const":["*"]}}}`:  `inputSchema: properties: _scopes: invalid: "*" is no name of a scope: want a letter, then letters, digits, _ and -, at most 64 bytes: /const/0`,
		`{"type":"object","properties":{"_delegate":{"const":1}}}`:    "inputSchema: properties: const: invalid: want a string: /_delegate",
		`{"type":"object","properties":{"a":{"$ref":"#/$defs/b"}}}`:   "inputSchema: ",
		`{"type":"object","properties":{"_scopes":{"type":"array"}}}`: `inputSchema: properties: _scopes: invalid: want one of {"const": [...]} and {"type": "array", "items": {"enum": [...]}}`,
	} {
		_, err := Declared("x", "", Hints{}, json.RawMessage(schema), sees)
		require.Error(t, err, schema)
		assert.Contains(t, err.Error(), want, schema)
	}
	tool, err := Declared("x", "", Hints{}, json.RawMessage(`{"type":"object","properties":{"_scopes":{"items":{"enum":["a"]}},"_delegate":{"type":"string"}},"required":["_scopes","_delegate"]}`), sees)
	require.NoError(t, err)
	gate := (&desk{}).gate(t, "")
	set, err := NewSet(gate)
	require.NoError(t, err)
	require.NoError(t, set.Declare([]Tool{tool}))
	require.Error(t, set.Declare([]Tool{tool, tool}))
	for args, path := range map[string]string{`{}`: "/_delegate", `{"_delegate":"m"}`: "/_scopes", `{"_delegate":"m","_scopes":[]}`: ""} {
		_, err := set.Call(t.Context(), Call{Tool: "x", Args: json.RawMessage(args)})
		if path == "" {
			require.NoError(t, err)
			continue
		}
		var e *Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, path, e.Path)
	}
	require.NoError(t, set.Declare(nil))
	_, err = set.Call(t.Context(), Call{Tool: "x"})
	assert.Equal(t, Denied, code(t, err), "a declaration that was removed")
}

// TestInstancesAtOnce requires that none of 1,000 calls at the same time sees a byte of
// another's instance.
func TestInstancesAtOnce(t *testing.T) {
	t.Parallel()
	const instances = 1000
	text := []string{`{"type":"state","all":true}`}
	for i := range instances {
		text = append(text, fmt.Sprintf(`{"type":"state","_instance":"%d","text":"<%d>"}`, i, i))
	}
	env := environment(t, "["+strings.Join(text, ",")+"]")
	var wg sync.WaitGroup
	next := make(chan int, instances)
	for i := range instances {
		next <- i
	}
	close(next)
	set, _ := scopedSet(t, &desk{}, "")
	for range 16 {
		wg.Go(func() {
			for i := range next {
				r, err := set.Call(t.Context(), Call{Tool: "choice", Args: json.RawMessage(fmt.Sprintf(`{"_scopes":["state"],"_instance":"%d"}`, i)), Context: env})
				if assert.NoError(t, err) {
					assert.Equal(t, fmt.Sprintf(`{} {"state":[{"type":"state","all":true},{"type":"state","_instance":"%d","text":"<%d>"}]} {"_scopes":["state"],"_instance":"%d"}`, i, i, i), r.Content[0].Text)
				}
			}
		})
	}
	wg.Wait()
}
