package tools

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/limit"
)

// desk is a gate with a log to look into.
type desk struct {
	mu     sync.Mutex
	events []audit.Event
	full   bool
	hash   string
	inode  string
}

func (d *desk) record(_ context.Context, e audit.Event) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full {
		return errors.New("disk full")
	}
	d.events = append(d.events, e)
	return nil
}

// told are the outcomes recorded so far, with the tool.
func (d *desk) told() (all []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.events {
		all = append(all, strings.TrimSpace(e.Event+" "+e.Op+" "+e.Outcome))
	}
	return all
}

// gate makes the gate of an agent with this frontmatter.
func (d *desk) gate(t testing.TB, front string) Gate {
	t.Helper()
	agent := load(t, front)
	return Gate{
		Agent: "a", Session: "s", Record: d.record, Rates: &Rates{}, Approvals: approvals.NewSet(nil),
		Rules: func() Rules { return agent.Grants },
		Object: func(_ context.Context, _, path string, _ bool) (approvals.Object, error) {
			return approvals.Object{Path: path, ID: d.inode, Content: d.hash}, nil
		},
	}
}

func load(t testing.TB, front string) *agents.Agent {
	t.Helper()
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
	text := "---\nname: a\ndescription: test\n" + front + "\n---\n"
	require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", "a.md"), []byte(text), 0o644))
	all, errs := agents.Load(base, agents.Host{Tools: known()})
	require.Empty(t, errs)
	return all.Agents["a"]
}

// known are the tools that the definitions of these tests name.
func known() (all catalog.Tools) {
	for _, name := range []string{"read_file", "write_file", "edit_file", "delete_file", "stat", "bash"} {
		all = append(all, catalog.Tool{Name: name, Writes: strings.HasSuffix(name, "e_file")})
	}
	return all
}

type echoIn struct {
	Path string   `json:"path"`
	Text string   `json:"text,omitempty" limit:"len=20"`
	N    int      `json:"n,omitempty" limit:"min=1,max=5"`
	List []string `json:"list,omitempty" limit:"items=2"`
	Mode string   `json:"mode,omitempty" limit:"enum=a|b"`
}

func (in echoIn) Subject() (string, string) { return in.Path, in.Text }

type echoOut struct {
	Said string `json:"said"`
}

func echo(t *testing.T, name string, h Hints, f func(context.Context, Env, echoIn) (echoOut, error)) Tool {
	t.Helper()
	if f == nil {
		f = func(_ context.Context, env Env, in echoIn) (echoOut, error) { return echoOut{in.Text}, nil }
	}
	tool, err := New(name, "says it", h, f)
	require.NoError(t, err)
	return tool
}

// caller returns a function that calls the tools of a gate.
func caller(t *testing.T, gate Gate, all ...Tool) func(tool, args string) error {
	t.Helper()
	set, err := NewSet(gate, all...)
	require.NoError(t, err)
	return func(tool, args string) error {
		_, err := set.Call(context.Background(), Call{Tool: tool, Args: json.RawMessage(args)})
		return err
	}
}

func code(t *testing.T, err error) Code {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	return e.Code
}

func TestCallRecordsBeginAndEnd(t *testing.T) {
	d := &desk{}
	set, err := NewSet(d.gate(t, ""), echo(t, "bash", Hints{}, nil))
	require.NoError(t, err)
	r, err := set.Call(context.Background(), Call{Tool: "bash", Args: json.RawMessage(`{"path":"x","text":"hi"}`)})
	require.NoError(t, err)
	assert.JSONEq(t, `{"said":"hi"}`, string(r.Structured))
	assert.Equal(t, []string{"call bash begin", "call bash ok"}, d.told())
	begin, end := d.events[0], d.events[1]
	assert.Equal(t, begin.Call, end.Call)
	assert.Len(t, begin.Call, 13)
	assert.Equal(t, "x", begin.Path)
	assert.Equal(t, "hi", begin.Target)
	assert.Positive(t, end.Bytes)
	assert.Contains(t, end.Detail, "sha256:")
	_, err = set.Call(context.Background(), Call{Tool: "builtin:bash", Args: json.RawMessage(`{"path":"x"}`)})
	assert.NoError(t, err)
}

func TestCallRunsNothingUnrecorded(t *testing.T) {
	d := &desk{full: true}
	ran := false
	call := caller(t, d.gate(t, ""), echo(t, "bash", Hints{}, func(context.Context, Env, echoIn) (echoOut, error) {
		ran = true
		return echoOut{}, nil
	}))
	err := call("bash", `{"path":"x"}`)
	assert.Equal(t, Unavailable, code(t, err))
	assert.False(t, ran)
	assert.NotContains(t, err.Error(), "disk full", "the cause is the operator's")
}

func TestCallRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		front, tool, args string
		code              Code
		rule              string
	}{
		"unknown tool":    {"", "nothing", `{}`, Denied, "no such tool"},
		"not in the list": {"tools: [read_file]", "bash", `{"path":"x"}`, Denied, "tools:"},
		"not an object":   {"", "bash", `[1]`, Invalid, ""},
		"not JSON":        {"", "bash", `{`, Invalid, ""},
		"two values":      {"", "bash", `{} {}`, Invalid, ""},
		"missing":         {"", "bash", `{}`, Invalid, ""},
		"unknown field":   {"", "bash", `{"path":"x","Path":"y"}`, Invalid, ""},
		"wrong type":      {"", "bash", `{"path":1}`, Invalid, ""},
		"too long":        {"", "bash", `{"path":"x","text":"` + strings.Repeat("a", 21) + `"}`, Invalid, ""},
		"too great":       {"", "bash", `{"path":"x","n":6}`, Invalid, ""},
		"too many":        {"", "bash", `{"path":"x","list":["1","2","3"]}`, Invalid, ""},
		"not one of":      {"", "bash", `{"path":"x","mode":"c"}`, Invalid, ""},
		"a name twice":    {"", "bash", `{"path":"x","path":"y"}`, Invalid, "schema"},
		"twice, within":   {"", "bash", `{"path":{"a":1,"a":2}}`, Invalid, "schema"},
		"too deep":        {"", "bash", `{"path":` + strings.Repeat("[", 33) + strings.Repeat("]", 33) + `}`, TooLarge, ""},
		"read only":       {"view: {access: read}", "write_file", `{"path":"x"}`, Denied, "access: read"},
		"filter":          {"argument_filters: {\"*\": [\"s3cret\"]}", "bash", `{"path":"czNjcmV0"}`, Denied, "argument_filters"},
	} {
		t.Run(name, func(t *testing.T) {
			d := &desk{}
			err := caller(t, d.gate(t, c.front), echo(t, "bash", Hints{}, nil), echo(t, "write_file", Hints{Writes: true}, nil))(c.tool, c.args)
			assert.Equal(t, c.code, code(t, err), "%v", err)
			require.Len(t, d.events, 1)
			assert.Equal(t, audit.Deny, d.events[0].Verdict)
			assert.Contains(t, d.events[0].Rule, c.rule)
		})
	}
}

// TestNoRules: a gate without rules, and one whose rules are gone, allow nothing.
func TestNoRules(t *testing.T) {
	for name, rules := range map[string]func() Rules{"no function": nil, "no rules": func() Rules { return nil }} {
		t.Run(name, func(t *testing.T) {
			d := &desk{}
			gate := d.gate(t, "")
			gate.Rules = rules
			set, err := NewSet(gate, echo(t, "bash", Hints{}, nil))
			require.NoError(t, err)
			assert.Empty(t, set.List())
			_, err = set.Call(context.Background(), Call{Tool: "bash", Args: json.RawMessage(`{"path":"x"}`)})
			assert.Equal(t, Denied, code(t, err))
			require.Len(t, d.events, 1)
			assert.Equal(t, audit.Deny, d.events[0].Verdict)
			assert.Equal(t, string(scope.KindNothing), d.events[0].RuleKind)
		})
	}
}

// TestJudged: what a tool itself refuses is a denial with its rule before the call begins.
// Nobody is asked to approve it, and no rate counts it.
func TestJudged(t *testing.T) {
	d := &desk{}
	ran := 0
	judged := func(name string) Tool {
		tool, err := New(name, "says it", Hints{}, func(context.Context, Env, echoIn) (echoOut, error) { ran++; return echoOut{}, nil })
		tool, err = Judged(tool, err, func(env Env, in echoIn) error {
			assert.Equal(t, []scope.Principal{{ID: "a", Origin: scope.FromOperator}}, env.Within)
			if in.Path == "no" {
				return Refused(scope.Decision{Kind: scope.KindGrant, Rule: "its own"}, Denied, "not this")
			}
			return nil
		})
		require.NoError(t, err)
		return tool
	}
	call := caller(t, d.gate(t, "policy: {tools: {ask: [stat]}}\nrate_limits: {bash: 1/hour}"), judged("bash"), judged("stat"))
	for _, name := range []string{"bash", "bash", "stat"} {
		assert.Equal(t, Denied, code(t, call(name, `{"path":"no"}`)))
		e := d.events[len(d.events)-1]
		assert.Equal(t, []string{"deny", "its own", "grant"}, []string{string(e.Verdict), e.Rule, e.RuleKind})
	}
	assert.Equal(t, []string{"call bash denied", "call bash denied", "call stat denied"}, d.told())
	assert.NoError(t, call("bash", `{"path":"x"}`))
	assert.Equal(t, 1, ran)

	by, ok := judged("bash").Judge(Env{Agent: "a", Within: []scope.Principal{{ID: "a", Origin: scope.FromOperator}}}, json.RawMessage(`{"path":"no"}`))
	assert.False(t, ok)
	assert.Equal(t, "its own", by.Rule)
	_, err := Judged(echo(t, "bash", Hints{}, nil), nil, func(Env, string) error { return nil })
	assert.ErrorContains(t, err, "its judge")
}

// TestJudgedAgain: a call that waited is judged again if the rules have changed.
func TestJudgedAgain(t *testing.T) {
	d := &desk{}
	gate := d.gate(t, "")
	rules, changed, may := gate.Rules(), load(t, "skills: []\ntools: [\"*\"]").Grants, true
	gate.Rules = func() Rules { return rules }
	tool, err := New("bash", "says it", Hints{}, func(context.Context, Env, echoIn) (echoOut, error) { return echoOut{}, nil })
	tool, err = Judged(tool, err, func(Env, echoIn) error {
		if may {
			return nil
		}
		return Refused(scope.Decision{Kind: scope.KindMember, Rule: "members"}, NotFound, "none")
	})
	require.NoError(t, err)
	record := gate.Record
	gate.Record = func(ctx context.Context, e audit.Event) error {
		if e.Outcome == audit.OutcomeBegin {
			rules, may = changed, false
		}
		return record(ctx, e)
	}
	err = caller(t, gate, tool)("bash", `{"path":"x"}`)
	assert.Equal(t, NotFound, code(t, err))
	e := d.events[len(d.events)-1]
	assert.Equal(t, []string{"deny", "members"}, []string{string(e.Verdict), e.Rule})
}

// TestNoIsDenied: the error of a tool that says no is recorded as a denial with a rule, also
// if the tool gives none.
func TestNoIsDenied(t *testing.T) {
	for want, verdict := range map[Code]audit.Verdict{
		Denied: audit.Deny, OutsideScope: audit.Deny, ApprovalRequired: audit.Deny, RateLimited: audit.Deny,
		NotFound: audit.Allow, Conflict: audit.Allow, TooLarge: audit.Allow, Unavailable: audit.Allow, Invalid: audit.Allow, Internal: audit.Allow,
	} {
		t.Run(string(want), func(t *testing.T) {
			d := &desk{}
			call := caller(t, d.gate(t, ""), echo(t, "bash", Hints{}, func(context.Context, Env, echoIn) (echoOut, error) {
				return echoOut{}, Errorf(want, "why not")
			}))
			assert.Equal(t, want, code(t, call("bash", `{"path":"x"}`)))
			e := d.events[len(d.events)-1]
			assert.Equal(t, verdict, e.Verdict)
			assert.NotEmpty(t, e.Rule)
			assert.Equal(t, verdict == audit.Deny, e.Rule != "no rule", e.Rule)
		})
	}
}

func TestListIsWhatMayBeCalled(t *testing.T) {
	for name, c := range map[string]struct {
		front string
		want  []string
	}{
		"all":       {"", []string{"bash", "read_file", "write_file"}},
		"some":      {"tools: [read_file, bash]", []string{"bash", "read_file"}},
		"none":      {"tools: []", nil},
		"asked":     {"policy: {tools: {ask: [bash]}}", []string{"bash", "read_file", "write_file"}},
		"read only": {"view: {access: read}", []string{"bash", "read_file"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := &desk{}
			set, err := NewSet(d.gate(t, c.front), echo(t, "bash", Hints{}, nil), echo(t, "read_file", Hints{}, nil), echo(t, "write_file", Hints{Writes: true}, nil))
			require.NoError(t, err)
			var got []string
			for _, tool := range set.List() {
				got = append(got, tool.Name)
			}
			assert.Equal(t, c.want, got)
		})
	}
}

func TestNamesAreThereOnce(t *testing.T) {
	d := &desk{}
	_, err := NewSet(d.gate(t, ""), echo(t, "bash", Hints{}, nil), echo(t, "bash", Hints{}, nil))
	assert.Error(t, err)
	set, err := NewSet(d.gate(t, ""))
	require.NoError(t, err)
	assert.Error(t, set.Extend([]Tool{echo(t, "bash", Hints{}, nil)}), "only servers' tools come and go")
}

func TestAliasGoesThroughTheDoor(t *testing.T) {
	d := &desk{}
	type in struct {
		FilePath string `json:"file_path"`
	}
	alias, err := Alias("Read", "reads", Hints{}, []string{"read_file"}, func(i in) ([]Inner, error) {
		return []Inner{{Tool: "read_file", Args: map[string]any{"path": i.FilePath, "text": "inner"}}}, nil
	}, nil)
	require.NoError(t, err)
	set, err := NewSet(d.gate(t, ""), echo(t, "read_file", Hints{}, nil), alias)
	require.NoError(t, err)
	r, err := set.Call(context.Background(), Call{Tool: "Read", Args: json.RawMessage(`{"file_path":"f"}`)})
	require.NoError(t, err)
	assert.Equal(t, `{"said":"inner"}`, r.Content[0].Text)
	assert.Equal(t, []string{"call read_file begin", "call read_file ok"}, d.told())
	_, err = set.Call(context.Background(), Call{Tool: "read_file", Args: json.RawMessage(`{"path":"f"}`)})
	assert.Equal(t, Denied, code(t, err), "what an alias covers is not offered under its own name")
	require.Len(t, set.List(), 1)
}

func TestPanicIsAnError(t *testing.T) {
	d := &desk{}
	err := caller(t, d.gate(t, ""), echo(t, "bash", Hints{}, func(context.Context, Env, echoIn) (echoOut, error) { panic("/host/path") }))("bash", `{"path":"x"}`)
	assert.Equal(t, Internal, code(t, err))
	assert.NotContains(t, err.Error(), "/host")
	assert.Contains(t, d.events[1].Detail, "/host/path")
}

func TestRates(t *testing.T) {
	d := &desk{}
	call := caller(t, d.gate(t, "rate_limits: {\"ba*\": 2/hour}"), echo(t, "bash", Hints{}, nil), echo(t, "stat", Hints{}, nil))
	for range 2 {
		require.NoError(t, call("bash", `{"path":"x"}`))
	}
	err := call("bash", `{"path":"x"}`)
	assert.Equal(t, RateLimited, code(t, err))
	assert.Contains(t, err.Error(), "try again in 30m")
	assert.NoError(t, call("stat", `{"path":"x"}`), "others are not counted")
}

func TestOnlySoManyAtOnce(t *testing.T) {
	d := &desk{}
	block, started := make(chan struct{}), make(chan struct{}, maxRunning)
	call := caller(t, d.gate(t, ""), echo(t, "bash", Hints{}, func(context.Context, Env, echoIn) (echoOut, error) {
		started <- struct{}{}
		<-block
		return echoOut{}, nil
	}))
	var wg sync.WaitGroup
	for range maxRunning {
		wg.Go(func() { assert.NoError(t, call("bash", `{"path":"x"}`)) })
	}
	for range maxRunning {
		<-started
	}
	assert.Equal(t, RateLimited, code(t, call("bash", `{"path":"x"}`)))
	close(block)
	wg.Wait()
}

// TestTurns: the calls of one agent keep those of another waiting for no server.
func TestTurns(t *testing.T) {
	block, started := make(chan struct{}), make(chan scope.ID, 4)
	slow := echo(t, "bash", Hints{Waits: true, Turns: limit.NewQueue(2, 2, time.Hour)}, func(_ context.Context, env Env, _ echoIn) (echoOut, error) {
		started <- env.Agent
		<-block
		return echoOut{}, nil
	})
	var calls sync.WaitGroup
	call := func(ctx context.Context, id scope.ID, want Code) {
		gate := (&desk{}).gate(t, "")
		gate.Agent = id
		set, err := NewSet(gate, slow)
		require.NoError(t, err)
		calls.Go(func() {
			_, err := set.Call(ctx, Call{Tool: "bash", Args: json.RawMessage(`{"path":"x"}`)})
			assert.Equal(t, want == "", err == nil, "%v", err)
		})
	}
	call(t.Context(), "loud", "")
	call(t.Context(), "loud", "")
	assert.Equal(t, []scope.ID{"loud", "loud"}, []scope.ID{<-started, <-started})
	ctx, cancel := context.WithCancel(t.Context())
	call(ctx, "loud", Internal)
	call(t.Context(), "calm", "")
	assert.Equal(t, scope.ID("calm"), <-started)
	cancel()
	close(block)
	calls.Wait()
	assert.Empty(t, started, "what was cancelled while it waited did not run")
}

func TestCancelled(t *testing.T) {
	d := &desk{}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	set, err := NewSet(d.gate(t, ""), echo(t, "bash", Hints{}, func(ctx context.Context, _ Env, _ echoIn) (echoOut, error) {
		<-ctx.Done()
		return echoOut{}, ctx.Err()
	}))
	require.NoError(t, err)
	_, err = set.Call(ctx, Call{Tool: "bash", Args: json.RawMessage(`{"path":"x"}`)})
	assert.Contains(t, err.Error(), "cancelled")
	assert.Equal(t, []string{"call bash begin", "call bash internal"}, d.told(), "the end is recorded all the same")
}

// TestChoose: a listed tool has the choices of its agent, and the schema that sessions share stays as it is.
func TestChoose(t *testing.T) {
	shared := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{"member": {Type: "string"}, "task": {Type: "string"}}}
	tool := Tool{Input: shared, Choices: func() map[string][]string { return map[string][]string{"member": {"a", "b"}, "no": {"x"}, "task": nil} }}
	tool.choose()
	assert.Equal(t, []any{"a", "b"}, tool.Input.Properties["member"].Enum)
	assert.Nil(t, tool.Input.Properties["task"].Enum)
	assert.Len(t, tool.Input.Properties, 2)
	assert.Nil(t, shared.Properties["member"].Enum)
}
