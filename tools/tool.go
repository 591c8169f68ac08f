package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/scope/share"
	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/limit"
	"github.com/scopefs/scopefs/tools/questions"
)

// Tool is one tool. Only [Set.Call] can run it.
type Tool struct {
	Name, About string
	Aliases     []string // names of the tool in other programs; definitions write builtin:ALIAS
	Hints       Hints
	Version     string             // of a tool that may be replaced: an approval holds for one
	Input       *jsonschema.Schema // of the arguments; shared with other sessions' tools
	Output      *jsonschema.Schema // of the result; nil: text only; shared, too

	// Scopes is set by [Set.List] for tools of MCP servers: the schema by which a call
	// selects its scopes in Call.Beside. Nil: it sees none.
	Scopes *jsonschema.Schema

	// Idle reports that the tool has nothing to work on for the agent now, such as no member to delegate to: List leaves it out.
	// A call is decided all the same. Nil: never.
	Idle func() bool

	// Choices returns the values that the agent may give arguments now, for the schemas of List. A call is decided all the same.
	// Nil: any.
	Choices func() map[string][]string

	// Defaults are arguments for calls that omit them. Rules, log and approvals see
	// them as if they were given.
	Defaults map[string]string

	in    reflect.Type                            // of the arguments
	input validator                               // validates arguments; nil: no validation, see Dynamic
	read  func(scope.ID, json.RawMessage) decoded // decodes an agent's arguments, once for each call
	run   func(context.Context, Env, any) (Result, error)
	judge func(Env, any) error                                       // see Judged; nil allows all
	bind  func(context.Context, Env, any) (approvals.Changes, error) // see Bound; nil: by the path
	face  *face                                                      // of an alias; see Alias
	terms *terms                                                     // of calls with a context; see Declared
	late  *late                                                      // it is not declared yet; see Late
}

// Hints describe to clients, and to the door, what a tool does.
type Hints struct {
	Title       string
	Writes      bool // changes files: with access: read the tool is not offered
	Changes     bool // it, or a program that it starts, may change files of the view: the answer says which
	Acts        bool // changes something, though perhaps no file
	Destructive bool // may change or remove what was there
	Idempotent  bool // a second equal call has no further effect
	OpenWorld   bool // reaches beyond the view
	Context     bool // starts programs or agents, which may get the agent's scopes: see ContextRules
	Waits       bool // mostly waits, for a program, a person or a server: see [NewQueue]

	// Turns bounds the concurrent calls of tools that share a server or a disk, of all
	// agents and of each, so that one agent does not block others. A call takes a turn
	// before it runs, within 10 s. Nil: no bound. See [NewTurns].
	Turns *limit.Queue
}

// Env describes the call to its tool.
type Env struct {
	Agent   scope.ID
	Within  []scope.Principal // the agents that bound the call: see Gate
	Session string
	Call    string // its id in the log

	Context  scoped.Scoped   // the scopes that the call sees
	Envelope scoped.Envelope // members of the call that are no parameters

	// Keep makes later calls of the client's session select from these messages, too, in place of those of an earlier Keep.
	// Nil if the client has no session.
	Keep func(*scoped.Environment) error

	// Ask asks the client's user a question. Nil if there is no user.
	Ask func(ctx context.Context, q Question) (Answer, error)

	// Progress tells the client how far the call is. Nil if the client does not ask for it.
	Progress func(text string)

	// Begun is the record of the call's beginning, for the next daemon. Kept is called when the call outlives this daemon; the
	// door calls answered when the client has the result. Nil if the client cannot return. Resumed reports whether an earlier
	// daemon has begun the call: see [Gate].Resume.
	Begun   Begun
	Kept    func(answered func())
	Resumed bool
}

// All reports whether all agents that bound the call may do something. Nil may be none.
func (e Env) All(may func(scope.Principal) bool) bool {
	return may != nil && len(e.Within) > 0 && !slices.ContainsFunc(e.Within, func(p scope.Principal) bool { return !may(p) })
}

// Ungranted returns the decision that a list of scopefs.yaml, by its key, does not hold the call's agent. known reports
// whether there is such a list.
func (e Env) Ungranted(lists, name string, known bool) scope.Decision {
	d := scope.Decision{Kind: scope.KindGrant, Rule: lists, Remedy: "name " + name + " in " + lists}
	if known {
		d.Rule += "." + name
		d.Remedy = e.AddTo(d.Rule)
	}
	return d
}

// AddTo returns the remedy for a list of scopefs.yaml that does not hold the call's agent.
func (e Env) AddTo(list string) string {
	if slices.Contains(e.Within, scope.Principal{ID: e.Agent}) { // of a repository
		return "define " + string(e.Agent) + " in agents.d: no entry of " + list + " is about an agent of a repository"
	}
	name := string(e.Agent)
	for _, p := range e.Within {
		if p.ID == e.Agent {
			name = cmp.Or(p.Listed(), name)
		}
	}
	return "add " + name + " to " + list
}

// Question is a question to the client's user, and Answer the answer.

type (
	// Question is [questions.Question].
	Question = questions.Question
	// Answer is [questions.Answer].
	Answer = questions.Answer
)

// Subject is implemented by arguments that have a subject for the log: a path relative
// to the view, or other text, which the log redacts.
type Subject interface{ Subject() (path, target string) }

// Scoped is implemented by arguments that hold paths of the view. Such a call has its
// subject from About. With About.Outside it is refused and recorded as a violation;
// no operator has to approve it.
type Scoped interface{ About() About }

// About returns the subject of a call ([Subject]), and the error of a path that leads out
// of the view, nil if none does.
type About struct {
	Path, Target string
	Outside      *Error
}

// Sheller is implemented by arguments with a command for a shell. alone reports whether
// they hold nothing else but a timeout: no pattern covers a call with standard input or
// a working directory of its own.
type Sheller interface {
	Shell() (command string, alone bool)
}

// New returns a tool. The schemas follow from the types. In must be a struct: the tag
// jsonschema describes a field, the tag limit bounds it; see [schemaOf]. Out may be a
// [Contenter].
//
// An In with a field of type [Resource] is an error: see [NewScoped].
func New[In, Out any](name, about string, hints Hints, f func(context.Context, Env, In) (Out, error)) (Tool, error) {
	return newTool(nil, name, about, hints, f)
}

// NewScoped returns a tool whose inputs name parts of a shared resource. The strategy
// divides it among agents. In must have a field of type [Resource].
func NewScoped[In, Out any](strategy share.Strategy, name, about string, hints Hints, f func(context.Context, Env, In) (Out, error)) (Tool, error) {
	if strategy == nil {
		return Tool{}, fmt.Errorf("tool %q: it has no strategy", name)
	}
	return newTool(strategy, name, about, hints, f)
}

func newTool[In, Out any](strategy share.Strategy, name, about string, hints Hints, f func(context.Context, Env, In) (Out, error)) (Tool, error) {
	t := Tool{Name: name, About: about, Hints: hints, in: reflect.TypeFor[In]()}
	scoped, err := hasResource(reflect.TypeFor[In]())
	if err == nil && (strategy != nil) != scoped {
		err = errors.New("a strategy and inputs of type Resource go together")
	}
	if err != nil {
		return Tool{}, fmt.Errorf("tool %q: %w", name, err)
	}
	input, err := schemaOf[In]()
	if err != nil {
		return Tool{}, fmt.Errorf("tool %q: %w", name, err)
	}
	output, err := outputOf[Out](hints.Changes)
	if err != nil {
		return Tool{}, fmt.Errorf("tool %q: %w", name, err)
	}
	t.Input, t.input, t.Output = input.schema, input.valid, output
	t.read = func(agent scope.ID, args json.RawMessage) decoded { return read[In](strategy, agent, args) }
	t.run = func(ctx context.Context, env Env, in any) (Result, error) {
		out, err := f(ctx, env, in.(In))
		if err != nil {
			return Result{}, err
		}
		return newResult(out)
	}
	return t, nil
}

// Judged returns a tool that decides about each call by its arguments. [Set.Call] calls
// judge before it asks for an approval, counts the call or records its beginning, and
// again if the rules change before the tool runs. An error of judge, made by [Refused],
// ends the call. judge must not block. In is the In of the tool, or json.RawMessage for
// [Dynamic] and [Declared]. If err is not nil, Judged returns it.
func Judged[In any](t Tool, err error, judge func(Env, In) error) (Tool, error) {
	if err != nil {
		return t, err
	}
	if t.in != reflect.TypeFor[In]() {
		return Tool{}, fmt.Errorf("tool %q: its arguments are %v, and those of its judge %v", t.Name, t.in, reflect.TypeFor[In]())
	}
	t.judge = func(env Env, in any) error { return judge(env, in.(In)) }
	return t, nil
}

// Bound returns a tool whose calls, under ask, are approved for what show returns: the changes that the operator sees, with
// the hash of them. show changes nothing and takes one of Hints.Turns; its error ends the call. The tool must act on what has
// the hash only: see [ApprovedChanges]. No standing approval covers such a call. If err is not nil, Bound returns it.
func Bound[In any](t Tool, err error, show func(context.Context, Env, In) (approvals.Changes, error)) (Tool, error) {
	if err != nil {
		return t, err
	}
	if t.in != reflect.TypeFor[In]() {
		return Tool{}, fmt.Errorf("tool %q: its arguments are %v, and those of its show %v", t.Name, t.in, reflect.TypeFor[In]())
	}
	t.bind = func(ctx context.Context, env Env, in any) (approvals.Changes, error) { return show(ctx, env, in.(In)) }
	return t, nil
}

// Placed returns a tool whose calls have their subject from about, in place of [Scoped]: which paths lead outside depends on more
// than the arguments. about must not block. If err is not nil, Placed returns it.
func Placed[In any](t Tool, err error, about func(In) About) (Tool, error) {
	if err != nil {
		return t, err
	}
	if t.in != reflect.TypeFor[In]() {
		return Tool{}, fmt.Errorf("tool %q: its arguments are %v, and those of its subject %v", t.Name, t.in, reflect.TypeFor[In]())
	}
	read := t.read
	t.read = func(agent scope.ID, args json.RawMessage) decoded {
		d := read(agent, args)
		if in, ok := d.value.(In); ok {
			d.of(about(in))
		}
		return d
	}
	return t, nil
}

// Judge returns the error by which the tool itself would refuse a call with these
// arguments, or nil; see [Judged]. It runs nothing: scopefs why explains calls by it.
func (t Tool) Judge(env Env, args json.RawMessage) (refused scope.Decision, ok bool) {
	r := invocation{tool: &t, decoded: t.read(env.Agent, args)}
	e := r.judge(env)
	if e == nil {
		return scope.Decision{}, true
	}
	by, _, _ := e.decided()
	return by, false
}

// Dynamic returns a tool whose schema comes from another program, such as an MCP server.
// Clients read the schema. The door does not validate with it, because validation could
// cost any amount of time: arguments need only be an object. The result has no schema.
func Dynamic(name, about string, hints Hints, schema *jsonschema.Schema, f func(context.Context, Env, json.RawMessage) (Result, error)) Tool {
	return Tool{Name: name, About: about, Hints: hints, Input: schema, in: reflect.TypeFor[json.RawMessage](),
		read: func(_ scope.ID, args json.RawMessage) decoded { return decoded{value: args} },
		run: func(ctx context.Context, env Env, in any) (Result, error) {
			return f(ctx, env, in.(json.RawMessage))
		}}
}

// decode reads canonical arguments. They are validated before they are used, so an error
// is one of number sizes at most.
func decode[In any](args json.RawMessage) (in In, err error) {
	err = json.Unmarshal(args, &in) // the schema refuses unknown names
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		// To a schema 1.0 and 1e0 are integers (JSON Schema 2020-12, 4.2.3), to
		// encoding/json they are not.
		in = *new(In)
		err = json.Unmarshal(integers(args), &in)
	}
	if err != nil {
		return in, Errorf(Invalid, "arguments: %s", middle(err.Error()))
	}
	return in, nil
}

// decoded is the arguments of a call as its tool takes them.
type decoded struct {
	value any   // of the tool's In; nil after an error
	err   error // the arguments do not fit the type
	subject
}

// subject is the subject of a call.
type subject struct {
	path, target string         // see Subject
	kind         approvals.Kind // for patterns of standing approvals
	command      string         // see Sheller; "" if the call has more than a command
	outside      *Error         // see Scoped
}

func (s *subject) of(a About) {
	if s.path, s.target, s.outside = a.Path, a.Target, nil; a.Outside != nil {
		s.outside = a.Outside.Violates(rulePath)
	}
}

// rulePath is the rule of a refusal of a path that leads out of the view.
const rulePath = "resolution: path leads outside"

func read[In any](strategy share.Strategy, agent scope.ID, args json.RawMessage) (about decoded) {
	in, err := decode[In](args)
	if err != nil {
		return decoded{err: err}
	}
	if strategy != nil {
		about.outside = apply(reflect.ValueOf(&in), strategy, agent)
	}
	about.value = in
	switch s := any(in).(type) {
	case Subject:
		about.path, about.target = s.Subject()
	case Scoped:
		about.of(s.About())
	}
	if about.path != "" {
		about.kind = approvals.KindPath
	}
	if c, ok := any(in).(Sheller); ok {
		about.kind = approvals.KindCommand
		if command, alone := c.Shell(); alone {
			about.command = command
		}
	}
	return about
}
