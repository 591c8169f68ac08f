// Package delegate provides the tool that gives a task to another agent, a member.
// The operator's runner, such as claude -p, runs the task in a runner sandbox with
// the member's tools; its standard output is the answer. The runner receives the
// member's prompt, the task and the contexts that the caller may hand on, and
// nothing else of the caller.
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
	maxAnswer = 256 << 10 // bytes of an answer; the middle of a longer one is left out
	maxErrors = 2 << 10   // bytes of the end of stderr in an error
	maxInput  = 512 << 10 // bytes of a task and its contexts
)

// ErrNoRunner is the error of the run function of [New] when the operator has
// configured no runner.
var ErrNoRunner = errors.New("no runner is configured")

// Output is the output and the exit status of a runner. Stdout may leave out the
// middle.
type Output struct {
	Stdout string
	Stderr string // at least its last 2 KiB
	Exit   sandbox.Exit
}

type contextArg struct {
	Name string `json:"name" limit:"len=64"`
	Text string `json:"text" limit:"len=65536"`
}

type args struct {
	Member  string       `json:"member" jsonschema:"the agent that does the task" limit:"len=63"`
	Task    string       `json:"task" jsonschema:"everything the member must know: it sees neither this conversation nor these files" limit:"len=65536"`
	Context []contextArg `json:"context,omitempty" jsonschema:"named texts for the member, under names that this agent may hand on" limit:"items=20"`
}

// Subject returns the member as the target.
func (a args) Subject() (rel, target string) { return "", a.Member }

type result struct {
	Member    string `json:"member" limit:"len=63"`
	Answer    string `json:"answer" limit:"len=263000"`
	Truncated bool   `json:"truncated,omitempty" jsonschema:"the middle of the answer is left out"`
}

// Content returns the answer.
func (r result) Content() []tools.Content {
	if strings.TrimSpace(r.Answer) == "" {
		return []tools.Content{{Text: "The member finished without an answer."}}
	}
	return []tools.Content{{Text: r.Answer}}
}

// New returns the tool delegate.
//
// run runs the operator's runner for a member, with the member's prompt and then
// stdin as its input; nil is the same as ErrNoRunner. run limits how deep and how
// many tasks are delegated.
//
// members returns the members that the agent may delegate to now. decide decides
// about one member, contexts about one context by name. required returns the
// contexts that every task must have. A member must be in members and allowed by
// decide. Otherwise the call fails with tools.NotFound, as for an unknown name.
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
	_, _ = answer.Write([]byte(out.Stdout)) // a capture accepts every write
	return result{Member: a.Member, Answer: answer.String(), Truncated: answer.cut()}, nil
}

// check validates the arguments, authorises the member and the contexts, and
// returns the text for the member.
func (d delegate) check(env tools.Env, a args) (string, error) {
	may := func(id scope.ID) bool { return id != env.Agent && d.decide(string(id)).Allow }
	members := slices.Sorted(slices.Values(d.members()))
	if id := scope.ID(a.Member); !slices.Contains(members, id) || !may(id) {
		e := tools.Refused(d.decide(a.Member), tools.NotFound, "no member %q", a.Member)
		e.Hint = "this agent has no members"
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
			return "", tools.Refused(may, tools.Denied, "this agent may not hand on the context %q", c.Name)
		case slices.Contains(seen, c.Name):
			return "", tools.Errorf(tools.Invalid, "the context %q is given twice", c.Name)
		}
		seen = append(seen, c.Name)
	}
	if missing := slices.DeleteFunc(d.required(), func(name string) bool { return slices.Contains(seen, name) }); len(missing) > 0 {
		e := tools.Errorf(tools.Invalid, "the context %q is missing", missing[0])
		e.Hint = tools.Clip(fmt.Sprintf("each task needs these contexts: %s", strings.Join(d.required(), ", ")), 500)
		return "", e
	}
	text := compose(env.Agent, a)
	if len(text) > maxInput {
		e := tools.Errorf(tools.TooLarge, "task and context have %d bytes: the limit is %d", len(text), maxInput)
		e.Hint = "name the file or store that holds the data instead"
		return "", e
	}
	return text, nil
}

// closing matches what a model could read as the closing tag of a task or context:
// in any case, with white space or invisible characters in it.
var closing = regexp.MustCompile(`(?i)<([\s\pZ\pC]*)/([\s\pZ\pC]*(?:task|context))`)

// compose returns the task for the member's input, which follows the member's
// prompt. Tags mark the sender and the end, and closing tags inside are escaped,
// so that a task cannot pass for the operator's text.
func compose(from scope.ID, a args) string {
	inside := func(text string) string { return closing.ReplaceAllString(text, `<${1}\/${2}`) }
	var b strings.Builder
	fmt.Fprintf(&b, "<task from=%q>\n%s\n</task>\n", from, inside(a.Task))
	for _, c := range a.Context {
		fmt.Fprintf(&b, "<context name=%q>\n%s\n</context>\n", c.Name, inside(c.Text))
	}
	return b.String()
}

// failure returns the error for a runner that exited with an error.
func failure(member string, out Output) error {
	how := fmt.Sprintf("with status %d", out.Exit.Code)
	switch {
	case out.Exit.TimedOut:
		how = "at its timeout"
	case out.Exit.OutOfMemory:
		how = "at its memory limit"
	case out.Exit.Signal != 0:
		how = "by " + unix.SignalName(out.Exit.Signal)
	}
	detail := strings.TrimSpace(tools.Clean(out.Stderr))
	if detail == "" { // some programs write errors to stdout
		detail = strings.TrimSpace(tools.Clean(out.Stdout))
	}
	if detail != "" {
		detail = ": " + strings.ToValidUTF8(detail[max(0, len(detail)-maxErrors):], "")
	}
	return tools.Errorf(tools.Internal, "%s ended %s%s", member, how, detail)
}
