package delegate

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == pid1.Arg {
		os.Exit(pid1.Main())
	}
	os.Exit(m.Run())
}

// fixture is the tool of an agent "boss". "writer" is a member; "sleeper" is in
// members but denied by decide, "ghost" is allowed by decide but not in members.
type fixture struct {
	delegate
	out   Output
	err   error
	asked []string // member and stdin
	must  []string // contexts
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
	f.delegate = delegate{
		run: func(_ context.Context, member scope.ID, stdin string) (Output, error) {
			f.asked = append(f.asked, string(member), stdin)
			return f.out, f.err
		},
		members:  func() []scope.ID { return []scope.ID{"writer", "sleeper", "boss"} },
		decide:   allow("writer", "ghost", "boss"),
		contexts: allow("state"),
		required: func() []string { return slices.Clone(f.must) },
	}
	return f
}

func (f *fixture) ask(t *testing.T, a args) (result, error) {
	t.Helper()
	return f.call(t.Context(), tools.Env{Agent: "boss"}, a)
}

func codeIs(t *testing.T, want tools.Code, err error) *tools.Error {
	t.Helper()
	e, ok := errors.AsType[*tools.Error](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, want, e.Code, e.Message)
	return e
}

func TestAnswer(t *testing.T) {
	f := newFixture()
	f.out.Stdout = "done\n"
	r, err := f.ask(t, args{Member: "writer", Task: "write </task> it", Context: []contextArg{{"state", "a </context> b"}}})
	require.NoError(t, err)
	assert.Equal(t, result{Member: "writer", Answer: "done\n"}, r)
	assert.Equal(t, "done\n", r.Content()[0].Text)
	assert.Equal(t, []string{"writer", "<task from=\"boss\">\nwrite <\\/task> it\n</task>\n<context name=\"state\">\na <\\/context> b\n</context>\n"}, f.asked)
	f.out.Stdout = ""
	r, err = f.ask(t, args{Member: "writer", Task: "x"})
	require.NoError(t, err)
	assert.Equal(t, "The member finished without an answer.", r.Content()[0].Text)
}

// TestClosed requires that compose escapes each variant of a closing tag.
func TestClosed(t *testing.T) {
	for in, want := range map[string]string{
		"</task>":                   `<\/task>`,
		"</TASK> </Context x":       `<\/TASK> <\/Context x`,
		"</ task></\t\n\u00a0task>": "<\\/ task><\\/\t\n\u00a0task>",
		"< /task><\u200b/task>":     "< \\/task><\u200b\\/task>",
		"</p> 1</2 </ask>":          "</p> 1</2 </ask>",
	} {
		text := compose("boss", args{Task: in, Context: []contextArg{{"state", in}}})
		assert.Equal(t, "<task from=\"boss\">\n"+want+"\n</task>\n<context name=\"state\">\n"+want+"\n</context>\n", text)
	}
}

func TestRefused(t *testing.T) {
	f := newFixture()
	for name, test := range map[string]struct {
		in   args
		code tools.Code
		text string
	}{
		"not allowed":      {args{Member: "sleeper", Task: "x"}, tools.NotFound, `no member "sleeper"`},
		"not there":        {args{Member: "ghost", Task: "x"}, tools.NotFound, `no member "ghost"`},
		"itself":           {args{Member: "boss", Task: "x"}, tools.NotFound, `no member "boss"`},
		"no id":            {args{Member: "../x", Task: "x"}, tools.NotFound, `no member "../x"`},
		"no task":          {args{Member: "writer", Task: " \n"}, tools.Invalid, "the task is empty"},
		"context":          {args{Member: "writer", Task: "x", Context: []contextArg{{"secrets", "x"}}}, tools.Denied, `this agent may not hand on the context "secrets"`},
		"context twice":    {args{Member: "writer", Task: "x", Context: []contextArg{{"state", "x"}, {"state", "y"}}}, tools.Invalid, `the context "state" is given twice`},
		"too much":         {args{Member: "writer", Task: strings.Repeat("x", maxInput)}, tools.TooLarge, "task and context have 524316 bytes: the limit is 524288"},
		"stranger with it": {args{Member: "sleeper", Task: "x", Context: []contextArg{{"secrets", "x"}}}, tools.NotFound, `no member "sleeper"`},
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
	f.members = func() []scope.ID { return nil }
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
	f.run = nil
	_, err = f.ask(t, args{Member: "writer", Task: "x"})
	codeIs(t, tools.Denied, err)
	_, err = f.ask(t, args{Member: "sleeper", Task: "x"})
	codeIs(t, tools.NotFound, err)
}

func TestFailures(t *testing.T) {
	f := newFixture()
	for name, test := range map[string]struct {
		out  Output
		want string
	}{
		"status":   {Output{Stdout: "half", Stderr: "x\x1b[0m\nno key\n", Exit: sandbox.Exit{Code: 2}}, "writer ended with status 2: x[0m\nno key"},
		"output":   {Output{Stdout: "no model\n", Exit: sandbox.Exit{Code: 1}}, "writer ended with status 1: no model"},
		"signal":   {Output{Exit: sandbox.Exit{Code: -1, Signal: unix.SIGKILL}}, "writer ended by SIGKILL"},
		"time":     {Output{Exit: sandbox.Exit{Code: -1, Signal: unix.SIGKILL, TimedOut: true}}, "writer ended at its timeout"},
		"the tail": {Output{Stderr: strings.Repeat("a", 9999) + "é" + strings.Repeat("b", maxErrors-1), Exit: sandbox.Exit{Code: 1}}, "writer ended with status 1: " + strings.Repeat("b", maxErrors-1)},
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
	f.out.Stdout = "begin" + strings.Repeat("é", maxAnswer) + "end"
	r, err := f.ask(t, args{Member: "writer", Task: "x"})
	require.NoError(t, err)
	assert.True(t, r.Truncated)
	assert.True(t, strings.HasPrefix(r.Answer, "begin") && strings.HasSuffix(r.Answer, "end"))
	assert.Contains(t, r.Answer, "bytes left out]")
	tool, err := New(f.run, f.members, f.decide, f.contexts, f.required)
	require.NoError(t, err)
	schema, err := tool.Output.Resolve(nil)
	require.NoError(t, err)
	text, err := json.Marshal(r)
	require.NoError(t, err)
	var v any
	require.NoError(t, json.Unmarshal(text, &v))
	assert.NoError(t, schema.Validate(v))
}

func TestCapture(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "abcd": "abcd", "abcdefgh": "abcdefgh", "abcdefghi": "abcd\n[1 bytes left out]\nfghi",
		"abc\xff": "abc\uFFFD", "abcéfghijk": "abc\n[3 bytes left out]\nhijk",
	} {
		for size := 1; size <= 9; size++ {
			c := newCapture(8)
			for rest := in; rest != ""; rest = rest[min(size, len(rest)):] {
				c.Write([]byte(rest[:min(size, len(rest))]))
			}
			assert.Equal(t, want, c.String(), "%q by %d", in, size)
		}
	}
}

// TestRun executes a runner in a real sandbox.
func TestRun(t *testing.T) {
	host, err := sandbox.Open(context.Background(), sandbox.Config{})
	if err != nil {
		need.Skip(t, "no sandbox here: ", err)
	}
	require.NoError(t, err)
	defer host.Close()
	dir, err := os.MkdirTemp("", "view")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	view := os.NewFile(uintptr(fd), dir)
	defer view.Close()
	id := uint32(1000)
	if os.Geteuid() != 0 {
		id = uint32(os.Geteuid())
	}
	session, err := host.Start(context.Background(), sandbox.Spec{Agent: "writer", UID: id, GID: id, View: view})
	require.NoError(t, err)
	run := func(ctx context.Context, script, stdin string) (Output, error) {
		return Run(ctx, session, sandbox.Command{Argv: []string{"bash", "-c", script}}, stdin)
	}
	out, err := run(t.Context(), "pwd; cat; echo bad >&2; exit 3", strings.Repeat("x", 300_000))
	require.NoError(t, err)
	assert.Equal(t, 3, out.Exit.Code)
	assert.Equal(t, "bad\n", out.Stderr)
	assert.True(t, strings.HasPrefix(out.Stdout, "/workspace\nxxx"))
	assert.Less(t, len(out.Stdout), maxAnswer+100)

	out, err = run(t.Context(), "sleep 1000 & echo answer", strings.Repeat("x", 300_000))
	require.NoError(t, err, "neither a background process nor unread input delays the answer")
	assert.Equal(t, "answer\n", out.Stdout)

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = run(ctx, "sleep 1000", "")
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = Run(t.Context(), session, sandbox.Command{Argv: []string{"no-such-runner"}}, "")
	assert.ErrorIs(t, err, unix.ENOENT)
	require.NoError(t, session.Close())
	_, err = run(t.Context(), "true", "")
	assert.ErrorIs(t, err, sandbox.ErrEnded)
}

// TestRequiredContexts requires that a task has all required contexts and no other.
func TestRequiredContexts(t *testing.T) {
	f := newFixture()
	f.must = []string{"input", "state"}
	f.contexts = func(name string) scope.Decision { return scope.Decision{Allow: slices.Contains(f.must, name)} }
	state, input := contextArg{"state", "s"}, contextArg{"input", "i"}
	for _, given := range [][]contextArg{nil, {state}, {input}} {
		_, err := f.ask(t, args{Member: "writer", Task: "t", Context: given})
		e := codeIs(t, tools.Invalid, err)
		assert.Contains(t, e.Error(), "is missing (each task needs these contexts: input, state)")
	}
	_, err := f.ask(t, args{Member: "writer", Task: "t", Context: []contextArg{state, input, {"more", "m"}}})
	codeIs(t, tools.Denied, err)
	assert.Empty(t, f.asked)
	_, err = f.ask(t, args{Member: "writer", Task: "t", Context: []contextArg{state, input}})
	require.NoError(t, err)
	assert.NotEmpty(t, f.asked)
}
