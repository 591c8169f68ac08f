// Package delegate hands a task to another agent. The operator's runner, such as
// claude -p, runs in the member's own sandbox, beneath the member's own policy;
// what it writes is the answer. Nothing of the agent that asks goes with it but
// the task and the context that it may hand on.
package delegate

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

const (
	maxAnswer = 256 << 10 // bytes, with its beginning and its end
	maxErrors = 2 << 10   // bytes of the end of stderr in an error
	maxInput  = 512 << 10 // bytes of a task with its context
)

// ErrNoRunner is what run returns when the operator has configured none.
var ErrNoRunner = errors.New("no runner is configured")

// Output is what a runner wrote, and how it ended.
type Output struct {
	Stdout string
	Stderr string // the end of it is enough
	Exit   sandbox.Exit
}

type contextArg struct {
	Name string `json:"name" limit:"len=64"`
	Text string `json:"text" limit:"len=65536"`
}

type args struct {
	Member  string       `json:"member" jsonschema:"the agent that is to do it" limit:"len=63"`
	Task    string       `json:"task" jsonschema:"all it must know: it sees neither this conversation nor these files" limit:"len=65536"`
	Context []contextArg `json:"context,omitempty" jsonschema:"texts to go with it, under names that may be handed on" limit:"items=20"`
}

// Subject is the member.
func (a args) Subject() (rel, target string) { return "", a.Member }

type result struct {
	Member    string `json:"member" limit:"len=63"`
	Answer    string `json:"answer" limit:"len=263000"`
	Truncated bool   `json:"truncated,omitempty" jsonschema:"the middle of the answer is left out"`
}

// Content is the answer.
func (r result) Content() []tools.Content {
	if strings.TrimSpace(r.Answer) == "" {
		return []tools.Content{{Text: "It ended well and said nothing."}}
	}
	return []tools.Content{{Text: r.Answer}}
}

// New returns the tool delegate. run has the runner do stdin, before which it
// puts the member's prompt, in the sandbox of member; nil is no runner. members
// says to whom the agent may delegate now, decide whether it may to one, contexts
// whether it may hand a context of a name on, required which contexts each task
// must have. A member must be allowed by both; one that is not does not exist.
//
// How deep and how many at once agents delegate is run's to bound.
func New(run func(ctx context.Context, member scope.ID, stdin string) (Output, error), members func() []scope.ID,
	decide, contexts func(name string) scope.Decision, required func() []string) (tools.Tool, error) {
	d := delegate{run, members, decide, contexts, required}
	return tools.New("delegate",
		"Give a task to another agent and wait for its answer. It works in its own files, with its own tools.",
		tools.Hints{Title: "Delegate", Waits: true, Acts: true, Destructive: true, OpenWorld: true}, d.call)
}

type delegate struct {
	run      func(ctx context.Context, member scope.ID, stdin string) (Output, error)
	members  func() []scope.ID
	decide   func(member string) scope.Decision
	contexts func(name string) scope.Decision
	required func() []string
}

func (d delegate) call(ctx context.Context, env tools.Env, a args) (result, error) {
	stdin, err := d.check(env, a)
	if err != nil {
		return result{}, err
	}
	err = ErrNoRunner
	var out Output
	if d.run != nil {
		out, err = d.run(ctx, scope.ID(a.Member), stdin)
	}
	switch {
	case errors.Is(err, ErrNoRunner):
		e := tools.Errorf(tools.Denied, "%v", ErrNoRunner)
		e.Hint = `the operator sets runner in scopefs.yaml, such as ["claude", "-p"]`
		return result{}, e
	case err != nil:
		return result{}, err
	case out.Exit.Code != 0 || out.Exit.Signal != 0:
		return result{}, failure(a.Member, out)
	}
	answer := newCapture(maxAnswer)
	answer.Write([]byte(out.Stdout))
	return result{Member: a.Member, Answer: answer.String(), Truncated: answer.cut()}, nil
}

// check returns what the member gets to read, if the agent may send it.
func (d delegate) check(env tools.Env, a args) (string, error) {
	may := func(id scope.ID) bool { return id != env.Agent && d.decide(string(id)).Allow }
	members := slices.Sorted(slices.Values(d.members()))
	if id := scope.ID(a.Member); !slices.Contains(members, id) || !may(id) {
		e := tools.Refused(d.decide(a.Member), tools.NotFound, "no member %q", a.Member)
		e.Hint = "there is none to delegate to"
		if members = slices.DeleteFunc(members, func(id scope.ID) bool { return !may(id) }); len(members) > 0 {
			e.Hint = tools.Clip(fmt.Sprintf("members: %v", members), 500)
		}
		return "", e
	}
	if strings.TrimSpace(a.Task) == "" {
		return "", tools.Errorf(tools.Invalid, "the task is empty")
	}
	var seen []string
	for _, c := range a.Context {
		switch may := d.contexts(c.Name); {
		case !may.Allow:
			return "", tools.Refused(may, tools.Denied, "the context %q is not in the scopes of this agent", c.Name)
		case slices.Contains(seen, c.Name):
			return "", tools.Errorf(tools.Invalid, "the context %q is there twice", c.Name)
		}
		seen = append(seen, c.Name)
	}
	if missing := slices.DeleteFunc(d.required(), func(name string) bool { return slices.Contains(seen, name) }); len(missing) > 0 {
		e := tools.Errorf(tools.Invalid, "the context %q is missing", missing[0])
		e.Hint = tools.Clip(fmt.Sprintf("each task has these contexts: %s", strings.Join(d.required(), ", ")), 500)
		return "", e
	}
	text := compose(env.Agent, a)
	if len(text) > maxInput {
		e := tools.Errorf(tools.TooLarge, "task and context have %d bytes, of at most %d", len(text), maxInput)
		e.Hint = "say where it is to be found instead"
		return "", e
	}
	return text, nil
}

// closing is what a model could take for the end of a task or context: it minds
// neither case nor blanks, nor what cannot be seen.
var closing = regexp.MustCompile(`(?i)<([\s\pZ\pC]*)/([\s\pZ\pC]*(?:task|context))`)

// compose returns the task as the member reads it, after its prompt. It says
// whose it is and where it ends, so that it cannot pass for the operator's.
func compose(from scope.ID, a args) string {
	inside := func(text string) string { return closing.ReplaceAllString(text, `<${1}\/${2}`) }
	var b strings.Builder
	fmt.Fprintf(&b, "<task from=%q>\n%s\n</task>\n", from, inside(a.Task))
	for _, c := range a.Context {
		fmt.Fprintf(&b, "<context name=%q>\n%s\n</context>\n", c.Name, inside(c.Text))
	}
	return b.String()
}

// failure is the error of a runner that did not end well.
func failure(member string, out Output) error {
	how := fmt.Sprintf("with status %d", out.Exit.Code)
	switch {
	case out.Exit.TimedOut:
		how = "because its time was over"
	case out.Exit.OutOfMemory:
		how = "because there was no memory left"
	case out.Exit.Signal != 0:
		how = "by " + unix.SignalName(out.Exit.Signal)
	}
	said := strings.TrimSpace(tools.Clean(out.Stderr))
	if said == "" { // some programs tell of errors there
		said = strings.TrimSpace(tools.Clean(out.Stdout))
	}
	if said != "" {
		said = ": " + strings.ToValidUTF8(said[max(0, len(said)-maxErrors):], "")
	}
	return tools.Errorf(tools.Internal, "%s ended %s%s", member, how, said)
}
