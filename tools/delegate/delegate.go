// Package delegate provides the tool that gives a task to another agent, a member.
// The operator's runner, such as claude -p, runs the task in a runner sandbox with
// the member's tools; its standard output is the answer. The runner receives the
// member's prompt, the scopes of the caller's context that the call selects, and the
// task, and nothing else of the caller.
package delegate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// MaxAnswer bounds an answer, in bytes. The middle of a longer one is left out.
const MaxAnswer = 256 << 10

// MaxErrors bounds the end of stderr in an error, in bytes.
const MaxErrors = 2 << 10

// ErrNoRunner is the error of [Tools].Run when the operator has
// configured no runner.
var ErrNoRunner = errors.New("no runner is configured")

// Task is the work of a runner for a member.
type Task struct {
	Text    string        // of its input; the member's own prompt comes before it
	Job     Job           // the task of Text, as values
	Context scoped.Scoped // what the member is given; Text has it, too
	Module  bool          // without the member's own prompt
}

// Job is a task for a member: a text, or a declared call.
type Job struct {
	Task string          `json:"task,omitempty"`
	Call json.RawMessage `json:"call,omitempty"` // with _tool, and the parameters
}

// Done is the result of a runner.
type Done struct {
	sandbox.Output
	Changes *Changes // nil: none wait for the caller
}

// Changes are a member's changes in a copy of its caller's files. The caller commits them, or discards them.
type Changes struct {
	Task    string `json:"task" limit:"len=63" jsonschema:"the argument of diff, commit and discard"`
	Total   int    `json:"total" jsonschema:"how many changes there are"`
	Summary string `json:"summary"`
	List    string `json:"list" limit:"len=40000" jsonschema:"a line for each of the first changes"`
}

// MaxList bounds Changes.List, in bytes.
const MaxList = 32 << 10

// Tools hands tasks to members.
type Tools struct {
	// Run runs the operator's runner for a member, and keeps MaxAnswer bytes of its
	// stdout and twice MaxErrors of its stderr; nil is the same as ErrNoRunner. It limits
	// how deep and how many tasks are delegated. A task that has failed has no changes.
	// With env.Resumed it continues with the runner of the call.
	Run func(ctx context.Context, env tools.Env, member scope.ID, t Task) (Done, error)

	// Members returns the members that the agent may delegate to now, Decide decides
	// about one. A member must be in Members and allowed by Decide. Otherwise a call fails
	// with tools.NotFound, as for an unknown name.
	Members func() []scope.ID
	Decide  func(member string) scope.Decision

	// ID returns the id of a member that a call names; nil: the name is the id.
	ID func(name string) scope.ID
}

type args struct {
	Member string `json:"member" jsonschema:"the agent that does the task" limit:"len=63"`
	Task   string `json:"task" jsonschema:"everything the member must know: it does not see this conversation" limit:"len=65536"`
}

// Subject returns the member as the target.
func (a args) Subject() (rel, target string) { return "", a.Member }

// result is also a message for the caller's own context.
type result struct {
	Type      string `json:"type" jsonschema:"the tool" limit:"len=64"`
	Member    string `json:"member" limit:"len=63"`
	Answer    string `json:"answer" limit:"len=263000"`
	Truncated bool   `json:"truncated,omitempty" jsonschema:"the middle of the answer is left out"`

	Changes *Changes `json:"changes,omitempty" jsonschema:"what the member has changed in a copy of your files: see diff, commit and discard"`
}

// Content returns the answer, and the changes that wait.
func (r result) Content() []tools.Content {
	content := []tools.Content{{Text: r.Answer}}
	if strings.TrimSpace(r.Answer) == "" {
		content[0].Text = "The member finished without an answer."
	}
	if c := r.Changes; c != nil {
		content = append(content,
			tools.Content{Text: fmt.Sprintf("Task %s has changes in a copy of your files, for diff, commit or discard:\n%s\n%s",
				c.Task, c.Summary, c.List)})
	}
	return content
}

const name = "delegate"

// Delegate returns the tool delegate. A call may give the member scopes of its context.
func (d Tools) Delegate() (tools.Tool, error) {
	t, err := tools.New(name,
		"Give a task to another agent and wait for its answer. It works with its own tools, in its own files or, "+
			"if the answer names the changes of a task, in a copy of yours.",
		tools.Hints{Title: "Delegate", Waits: true, Context: true, Acts: true, Destructive: true, OpenWorld: true},
		d.task)
	t.Idle = func() bool {
		return !slices.ContainsFunc(d.Members(), func(id scope.ID) bool { return d.Decide(string(id)).Allow })
	}
	t.Choices = func() map[string][]string {
		var members []string
		for _, id := range slices.Sorted(slices.Values(d.Members())) {
			if d.Decide(string(id)).Allow {
				members = append(members, string(id))
			}
		}
		return map[string][]string{"member": members}
	}
	return tools.Judged(t, err, func(env tools.Env, a args) error {
		_, err := d.check(env, a.Member)
		return err
	})
}

func (d Tools) task(ctx context.Context, env tools.Env, a args) (result, error) {
	id, err := d.check(env, a.Member)
	if err != nil {
		return result{}, err
	}
	if strings.TrimSpace(a.Task) == "" {
		return result{}, tools.Errorf(tools.Invalid, "the task is empty")
	}
	return d.run(ctx, env, name, id, Task{Text: compose(env, "task", a.Task), Job: Job{Task: a.Task}, Context: env.Context.Handed()})
}

// Call has a member do a declared call: it gets the call's name and parameters, and its
// context. With module it has no prompt of its own.
func (d Tools) Call(ctx context.Context, env tools.Env, tool string, params json.RawMessage, member string,
	module bool) (tools.Result, error) {
	id, err := d.check(env, member)
	if err != nil {
		return tools.Result{}, err
	}
	call, err := scoped.Envelope{Tool: &tool}.With(params)
	if err != nil {
		return tools.Result{}, err
	}
	r, err := d.run(ctx, env, tool, id, Task{Text: compose(env, "call", string(call)), Job: Job{Call: call},
		Context: env.Context.Handed(), Module: module})
	if err != nil {
		return tools.Result{}, err
	}
	text, err := json.Marshal(r)
	return tools.Result{Structured: text, Content: r.Content()}, err
}

// run runs the task of a member that check has authorised.
func (d Tools) run(ctx context.Context, env tools.Env, tool string, member scope.ID, t Task) (result, error) {
	err := ErrNoRunner
	var out Done
	if d.Run != nil {
		out, err = d.Run(ctx, env, member, t)
	}
	switch {
	case errors.Is(err, ErrNoRunner):
		need := scope.Decision{Kind: scope.KindNeed, Rule: "set runner in scopefs.yaml: there is none"}
		return result{}, tools.Refused(need, tools.Denied, "%v", ErrNoRunner).
			Suggest("do the task yourself, or ask your operator for a runner")
	case err != nil:
		return result{}, err
	case out.Exit.Code != 0 || out.Exit.Signal != 0:
		return result{}, failure(string(member), out.Output)
	}
	return result{Type: tool, Member: string(member), Answer: out.Stdout, Truncated: out.Cut, Changes: out.Changes}, nil
}

// id returns the id of the member that a call names.
func (d Tools) id(name string) scope.ID {
	if d.ID == nil {
		return scope.ID(name)
	}
	return d.ID(name)
}

// check authorises the member of a name, and returns its id.
func (d Tools) check(env tools.Env, member string) (scope.ID, error) {
	may := func(id scope.ID) bool { return id != env.Agent && d.Decide(string(id)).Allow }
	members := slices.Sorted(slices.Values(d.Members()))
	id := d.id(member)
	if slices.Contains(members, id) && may(id) {
		return id, nil
	}
	by := d.Decide(member)
	if by.Allow {
		by = scope.Decision{Kind: scope.KindMember, Rule: "no such member"}
	}
	e := tools.Refused(by, tools.NotFound, "no member %q", member)
	e.Hint = "this agent has no members"
	if members = slices.DeleteFunc(members, func(id scope.ID) bool { return !may(id) }); len(members) > 0 {
		e.Hint = tools.Clip(fmt.Sprintf("members: %v", members), 500)
	}
	return "", e
}

// compose returns what a member is given and what it is to do, for its input, which
// follows its prompt. Tags mark the sender and the end, and closing tags inside are
// escaped: neither can pass for the operator's text.
func compose(env tools.Env, kind, text string) string {
	return env.Context.Text(string(env.Agent)) + scoped.Block(kind, string(env.Agent), text)
}

// failure returns the error for a runner that exited with an error.
func failure(member string, out sandbox.Output) error {
	detail := strings.TrimSpace(tools.Clean(out.Stderr))
	if detail == "" { // some programs write errors to stdout
		detail = strings.TrimSpace(tools.Clean(out.Stdout))
	}
	if detail != "" {
		detail = ": " + strings.ToValidUTF8(detail[max(0, len(detail)-MaxErrors):], "")
	}
	return tools.Errorf(tools.Internal, "%s ended %s%s", member, out.Exit, detail)
}
