package delegate

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/agenttest"
	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// fixture is the tool of an agent "boss". "writer" is a member; "sleeper" is in
// members but denied by decide, "ghost" is allowed by decide but not in members.
type fixture struct {
	Tools
	out   sandbox.Output
	err   error
	asked []string // member and input
	tasks []Task
}

func newFixture() *fixture {
	f := &fixture{}
	allow := func(names ...string) func(string) scope.Decision {
		return func(name string) scope.Decision {
			for _, n := range names {
				if n == name {
					return scope.Decision{Allow: true}
				}
			}
			return scope.Decision{}
		}
	}
	f.Tools = Tools{
		Run: func(_ context.Context, _ tools.Env, member scope.ID, t Task) (Done, error) {
			f.asked = append(f.asked, string(member), t.Text)
			f.tasks = append(f.tasks, t)
			return Done{Output: f.out}, f.err
		},
		Members: func() []scope.ID { return []scope.ID{"writer", "sleeper", "boss"} },
		Decide:  allow("writer", "ghost", "boss"),
	}
	return f
}

// TestChoices: the schema has the members that the agent may delegate to.
func TestChoices(t *testing.T) {
	tool, err := newFixture().Delegate()
	require.NoError(t, err)
	assert.Equal(t, map[string][]string{"member": {"boss", "writer"}}, tool.Choices())
}

func (f *fixture) ask(t *testing.T, a args) (result, error) {
	t.Helper()
	return f.task(t.Context(), tools.Env{Agent: "boss"}, a)
}

// given returns the scope state of an environment.
func given(t *testing.T, text, instance string) scoped.Scoped {
	t.Helper()
	env, bad := scoped.Parse([]byte(text))
	require.Nil(t, bad)
	s, bad := scoped.Select(env, scoped.Spec{Names: []string{"state"}, Fixed: true}, nil, scoped.Envelope{Instance: &instance})
	require.Nil(t, bad)
	return s
}

var codeIs = agenttest.CodeIs

func TestAnswer(t *testing.T) {
	f := newFixture()
	f.out.Stdout = "done\n"
	env := tools.Env{Agent: "boss", Context: given(t, `[{"type":"state","_instance":"①","text":"a </context> b"},{"type":"state","_instance":"②"},{"type":"input"}]`, "①")}
	r, err := f.task(t.Context(), env, args{Member: "writer", Task: "write </task> it"})
	require.NoError(t, err)
	assert.Equal(t, result{Type: "delegate", Member: "writer", Answer: "done\n"}, r)
	assert.Equal(t, "done\n", r.Content()[0].Text)
	const messages = "<context from=\"boss\">\n" + `[{"type":"state","text":"a <\/context> b"}]` + "\n</context>\n"
	assert.Equal(t, []string{"writer", messages + "<task from=\"boss\">\nwrite <\\/task> it\n</task>\n"}, f.asked)
	assert.Equal(t, []string{"state"}, f.tasks[0].Context.Names())
	f.out.Stdout = ""
	r, err = f.ask(t, args{Member: "writer", Task: "x"})
	require.NoError(t, err)
	assert.Equal(t, "The member finished without an answer.", r.Content()[0].Text)

	f.out.Stdout, f.asked = "short", nil
	answer, err := f.Call(t.Context(), env, "summarize", json.RawMessage(`{"style":"</call>"}`), "writer", true)
	require.NoError(t, err)
	assert.JSONEq(t, `{"type":"summarize","member":"writer","answer":"short"}`, string(answer.Structured))
	assert.Equal(t, []string{"writer", messages + "<call from=\"boss\">\n" + `{"_tool":"summarize","style":"<\/call>"}` + "\n</call>\n"}, f.asked)
	assert.True(t, f.tasks[2].Module)
	_, err = f.Call(t.Context(), env, "summarize", json.RawMessage(`{}`), "sleeper", false)
	codeIs(t, tools.NotFound, err)
}

// TestClosed requires that compose escapes each variant of a closing tag.
func TestClosed(t *testing.T) {
	for in, want := range map[string]string{
		"</task>":                   `<\/task>`,
		"</TASK> </Context x":       `<\/TASK> <\/Context x`,
		"</ task></\t\n\u00a0task>": "<\\/ task><\\/\t\n\u00a0task>",
		"< /task><\u200b/call>":     "< \\/task><\u200b\\/call>",
		"</p> 1</2 </ask>":          "</p> 1</2 </ask>",
	} {
		text := compose(tools.Env{Agent: "boss"}, "task", in)
		assert.Equal(t, "<task from=\"boss\">\n"+want+"\n</task>\n", text)
	}
}

func TestRefused(t *testing.T) {
	f := newFixture()
	for name, test := range map[string]struct {
		in   args
		code tools.Code
		text string
	}{
		"not allowed": {args{Member: "sleeper", Task: "x"}, tools.NotFound, `no member "sleeper"`},
		"not there":   {args{Member: "ghost", Task: "x"}, tools.NotFound, `no member "ghost"`},
		"itself":      {args{Member: "boss", Task: "x"}, tools.NotFound, `no member "boss"`},
		"no id":       {args{Member: "../x", Task: "x"}, tools.NotFound, `no member "../x"`},
		"no task":     {args{Member: "writer", Task: " \n"}, tools.Invalid, "the task is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := f.ask(t, test.in)
			e := codeIs(t, test.code, err)
			assert.Equal(t, test.text, e.Message)
			if test.code == tools.NotFound {
				assert.Equal(t, "members: [writer]", e.Hint)
			}
		})
	}
	assert.Empty(t, f.asked, "nothing ran")
	f.Members = func() []scope.ID { return nil }
	_, err := f.ask(t, args{Member: "writer", Task: "x"})
	assert.Equal(t, "this agent has no members", codeIs(t, tools.NotFound, err).Hint)
}

func TestNoRunner(t *testing.T) {
	f := newFixture()
	f.err = ErrNoRunner
	_, err := f.ask(t, args{Member: "writer", Task: "x"})
	e := codeIs(t, tools.Denied, err)
	assert.Equal(t, "no runner is configured", e.Message)
	assert.Contains(t, e.Hint, "operator")
	f.Run = nil
	_, err = f.ask(t, args{Member: "writer", Task: "x"})
	codeIs(t, tools.Denied, err)
	_, err = f.ask(t, args{Member: "sleeper", Task: "x"})
	codeIs(t, tools.NotFound, err)
}

func TestFailures(t *testing.T) {
	f := newFixture()
	for name, test := range map[string]struct {
		out  sandbox.Output
		want string
	}{
		"status":   {sandbox.Output{Stdout: "half", Stderr: "x\x1b[0m\nno key\n", Exit: sandbox.Exit{Code: 2}}, "writer ended with status 2: x[0m\nno key"},
		"output":   {sandbox.Output{Stdout: "no model\n", Exit: sandbox.Exit{Code: 1}}, "writer ended with status 1: no model"},
		"signal":   {sandbox.Output{Exit: sandbox.Exit{Code: -1, Signal: unix.SIGKILL}}, "writer ended by SIGKILL"},
		"time":     {sandbox.Output{Exit: sandbox.Exit{Code: -1, Signal: unix.SIGKILL, TimedOut: true}}, "writer ended at its timeout"},
		"the tail": {sandbox.Output{Stderr: strings.Repeat("a", 9999) + "é" + strings.Repeat("b", MaxErrors-1), Exit: sandbox.Exit{Code: 1}}, "writer ended with status 1: " + strings.Repeat("b", MaxErrors-1)},
	} {
		t.Run(name, func(t *testing.T) {
			f.out = test.out
			_, err := f.ask(t, args{Member: "writer", Task: "x"})
			assert.Equal(t, test.want, codeIs(t, tools.Internal, err).Message)
		})
	}
	f.err = errors.New("no sandbox")
	_, err := f.ask(t, args{Member: "writer", Task: "x"})
	assert.ErrorIs(t, err, f.err)
}

func TestLongAnswer(t *testing.T) {
	f := newFixture()
	f.out.Stdout, f.out.Cut = "begin"+strings.Repeat("é", MaxAnswer/2)+"end", true
	r, err := f.ask(t, args{Member: "writer", Task: "x"})
	require.NoError(t, err)
	assert.True(t, r.Truncated)
	assert.Equal(t, f.out.Stdout, r.Answer)
	tool, err := f.Delegate()
	require.NoError(t, err)
	schema, err := tool.Output.Resolve(nil)
	require.NoError(t, err)
	text, err := json.Marshal(r)
	require.NoError(t, err)
	var v any
	require.NoError(t, json.Unmarshal(text, &v))
	assert.NoError(t, schema.Validate(v))
}
