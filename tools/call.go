package tools

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/trace"
	"github.com/scopefs/scopefs/internal/nearest"
	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools/approvals"
)

// Call is a call of a tool by an agent.
type Call struct {
	Tool string
	Args json.RawMessage // an object; nothing is {}

	Context *scoped.Environment // of the client's session; the call sees the scopes that it selects

	// Beside holds members of the call's envelope that are not in Args, and perhaps
	// _context, an environment that replaces Context. It is an object; empty means {}.
	// A member that Args has, too, has the same value.
	Beside json.RawMessage

	// Keep is Env.Keep.
	Keep func(*scoped.Environment) error

	// Holds is called with the id of an approval when the call starts to wait for it,
	// and with "" when the call goes on. nil is not called.
	Holds func(approval string)

	// Ask asks the client's user a question, or ends the call with an [Asked]. Nil if
	// there is no user.
	Ask func(context.Context, Question) (Answer, error)

	// Progress is called with what the tool says of its progress. nil is not called.
	Progress func(text string)

	// Trace is the span that the client says it makes the call in, as [trace.Parse] returns it. It is
	// recorded, and passed to MCP servers; no decision depends on it. The zero value: that of the Gate.
	Trace trace.Context

	Native bool // Tool is a tool's own name, also for a client with a profile

	// Resume is the id of a call that an earlier daemon has begun with the same arguments; "": this call is new. Kept is called
	// when the next daemon could resume the call: see Env.Kept. Nil if it could not.
	Resume string
	Kept   func(call string, answered func())

	done func() // releases the call's turn
}

// Call runs a tool: it validates, decides, records the beginning, runs, and records
// the end. It is the only way to run a tool. The error is an *[Error], an *[Asked], [ErrLeft] or [ErrLost].
func (s *Set) Call(ctx context.Context, c Call) (Result, error) {
	name := strings.TrimPrefix(c.Tool, "builtin:")
	if c.Trace.String() == "" {
		c.Trace = s.gate.Trace
	}
	early := &invocation{name: name, trace: c.Trace}
	ran, ok := s.running.Try()
	if !ok {
		return Result{}, s.refuse(ctx, early, Errorf(RateLimited, "%d calls are running already", maxRunning))
	}
	defer ran()
	release, full := s.gate.Rates.hold(len(c.Args) + len(c.Beside))
	if full != "" {
		return Result{}, s.refuse(ctx, early, Errorf(RateLimited, "%s", full))
	}
	defer release()
	done, err := s.gate.Queue.Take(ctx, s.gate.Agent)
	if err != nil {
		return Result{}, s.refuse(ctx, early, &Error{Code: Internal, Message: "the call was cancelled", cause: err})
	}
	defer done()
	c.done = done
	said, text, bad := c.cut(name, s.gate.Chain != "")
	if bad != nil {
		return Result{}, s.refuse(ctx, early, bad)
	}
	args, bad := parse(text)
	if bad != nil {
		return Result{}, s.refuse(ctx, early, bad)
	}
	alias := s.aliases[name]
	if alias == nil || c.Native {
		if s.covered[name] && !c.Native { // offered under other names
			return Result{}, s.refuse(ctx, early, s.noSuchTool(name))
		}
		return s.one(ctx, c, &invocation{name: name, args: args, given: said, trace: c.Trace})
	}
	if !s.mayAny(s.rules(), alias) {
		return Result{}, s.refuse(ctx, early, s.noSuchTool(name))
	}
	if err := validate(alias, args); err != nil {
		return Result{}, s.refuse(ctx, early, err)
	}
	inner, render, err := alias.face.read(args.canonical)
	if err != nil {
		return Result{}, s.refuse(ctx, early, asError(err))
	}
	if len(inner) == 0 { // such a call would be neither decided nor recorded
		return Result{}, s.refuse(ctx, early, Errorf(Internal, "%s stands for no call", name))
	}
	if len(inner) > 1 { // the next daemon would not have the results of the others
		c.Kept = nil
	}
	var all []Result
	var effects []Result
	for _, in := range inner {
		text, err := json.Marshal(in.Args)
		if err != nil {
			return Result{}, asError(err)
		}
		args, bad := parse(text)
		if bad != nil {
			return Result{}, s.refuse(ctx, &invocation{name: in.Tool, trace: c.Trace}, bad)
		}
		r, err := s.one(ctx, c, &invocation{name: in.Tool, args: args, inner: true, given: said, trace: c.Trace})
		if failed, ok := errors.AsType[*Error](err); ok && in.Optional {
			r, err = Result{Content: []Content{{Text: failed.Error()}}}, nil
		}
		if err != nil {
			return Result{}, err
		}
		effects = append(effects, r)
		all = append(all, r.without())
	}
	return render(all).joined(effects), nil
}

// invocation is the state of one call of one tool, from find to finish. One goroutine owns it.
type invocation struct {
	name    string
	tool    *Tool
	args    *arguments
	inner   bool           // an alias makes the call
	decoded                // the arguments, as values of the tool's In
	allowed scope.Decision // by which the call runs
	version string         // of the rules that allowed the call
	doing   string         // version of the tool that does the call; see doer
	id      string
	told    Env                         // passed to the tool
	objects map[string]approvals.Object // for which the call was approved
	content string                      // likewise: see Bound
	paths   []string                    // of the content, what was approved; none: all
	trace   trace.Context               // in which it is made
	given
}

// one runs a call of a tool by its own name.
func (s *Set) one(ctx context.Context, c Call, r *invocation) (Result, error) {
	r.id = newID()
	defer func() { c.done() }() // the turn may have been replaced meanwhile
	if c.Resume != "" {
		return s.resume(ctx, c, r)
	}
	if err := s.permit(ctx, &c, r); err != nil {
		return Result{}, err
	}
	return s.admitted(ctx, c, r)
}

// find looks up the tool of a call and decodes its arguments. It records its error.
func (s *Set) find(ctx context.Context, r *invocation) error {
	r.tool = s.native(r.name)
	if r.tool == nil && s.gate.Find != nil && strings.HasPrefix(r.name, serverPrefix) && s.may(s.rules(), r.name) {
		if err := s.gate.Find(ctx, r.name); err != nil {
			return s.unavailable(ctx, r, err)
		}
		r.tool = s.native(r.name)
	}
	if r.tool != nil && r.tool.late != nil && s.may(s.rules(), r.name) {
		declared, err := r.tool.late.wait(ctx)
		if err != nil {
			return s.unavailable(ctx, r, err)
		}
		r.tool = declared
	}
	if r.tool == nil {
		return s.refuse(ctx, r, s.noSuchTool(r.name))
	}
	if bad := r.complete(); bad != nil {
		return s.refuse(ctx, r, bad)
	}
	r.decoded = r.tool.read(s.gate.Agent, r.args.canonical)
	return nil
}

// complete adds the defaults of the tool to the arguments.
func (r *invocation) complete() *Error {
	if len(r.tool.Defaults) == 0 {
		return nil
	}
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(r.args.canonical, &all); err != nil {
		return asError(err) // cannot happen: parse has accepted them
	}
	for name, value := range r.tool.Defaults {
		if _, given := all[name]; !given {
			all[name], _ = json.Marshal(value)
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return asError(err)
	}
	args, bad := parse(text)
	if bad == nil {
		r.args = args
	}
	return bad
}

// admitted runs a call that the rules allow.
func (s *Set) admitted(ctx context.Context, c Call, r *invocation) (Result, error) {
	begun := r.begun()
	e := s.event(r)
	e.Outcome, e.Detail = audit.OutcomeBegin, "arguments "+begun.Arguments
	r.describe(&e)
	if err := s.gate.Record(ctx, e); err != nil {
		return Result{}, notRun("the call cannot be recorded", err)
	}
	return s.proceed(ctx, c, r, begun, nil, nil)
}

// event returns the event of a call that the rules allow.
func (s *Set) event(r *invocation) audit.Event {
	return audit.Event{Event: audit.KindCall, Agent: string(s.gate.Agent), Session: s.gate.Session, Call: r.id, Op: r.name,
		Path: r.path, Target: r.target, Verdict: audit.Allow, Rule: r.allowed.Rule, RuleKind: string(r.allowed.Kind),
		Trace: r.trace.String(), TraceState: r.trace.State}
}

// proceed runs a call whose beginning is recorded, unless it has an error, and records the end. was is nil for a call that this
// daemon has begun.
func (s *Set) proceed(ctx context.Context, c Call, r *invocation, begun Begun, was *Resumed, err error) (Result, error) {
	r.told = s.env(c, r) // the operator may have narrowed the context
	r.told.Begun, r.told.Resumed = begun, was != nil
	if c.Kept != nil {
		r.told.Kept = func(answered func()) { c.Kept(r.id, answered) }
	}
	ctx = context.WithValue(ctx, stillKey{}, func() error { return s.still(r) })
	ctx = context.WithValue(ctx, traceKey{}, trace.Call(string(s.gate.Agent), s.gate.Session, r.id, r.trace))
	if r.objects != nil {
		ctx = context.WithValue(ctx, approvedKey{}, r.objects)
	}
	if r.content != "" {
		ctx = context.WithValue(ctx, changesKey{}, Changes{r.content, r.paths})
	}
	if r.tool.Hints.Waits {
		c.done()
	}
	if err == nil {
		var end func()
		end, err = r.tool.turn(ctx, s.gate.Agent)
		defer end()
	}
	result := Result{}
	watch := s.watch(r)
	if watch != nil {
		defer watch.End()
	}
	if err == nil {
		err = Still(ctx)
	}
	if err == nil {
		err = r.err
	}
	if err == nil {
		result, err = s.run(ctx, r)
		result, err = s.tell(context.WithoutCancel(ctx), watch, r, result, err)
	}
	if errors.Is(err, ErrLeft) {
		return Result{}, ErrLeft
	}
	if err != nil && was != nil {
		was.End()
	}
	e := s.event(r)
	e.Outcome, e.DurationUS = outcomeOK, time.Since(begun.At).Microseconds()
	e.Changed, e.Effects = result.changed()
	if asked, ok := errors.AsType[*Asked](err); ok {
		e.Outcome, err = outcomeAsked, asked
	} else if err != nil {
		failed := asError(err)
		e.Outcome = string(failed.Code)
		if failed.cause != nil {
			e.Detail = failed.cause.Error()
		}
		if by, verdict, ok := failed.decided(); ok {
			e.Verdict, e.Rule, e.RuleKind = verdict, by.Rule, string(by.Kind)
		}
		err = failed
	} else {
		e.Bytes, e.Exit, e.Detail = result.size(), result.exit, "result "+result.hash()
	}
	if was != nil && was.Recorded != nil && was.Recorded() {
		return result, err
	}
	// Record the end even if the client has disconnected.
	if failed := s.gate.Record(context.WithoutCancel(ctx), e); failed != nil {
		return Result{}, &Error{Code: Unavailable, Message: "the call ran, and its end cannot be recorded",
			Hint: "look first whether it had its effect", cause: failed}
	}
	return result, err
}

// env returns the Env that the door passes to the tool of a call.
func (s *Set) env(c Call, r *invocation) Env {
	env := Env{Agent: s.gate.Agent, Within: []scope.Principal{{ID: s.gate.Agent, Origin: scope.FromOperator}},
		Session: s.gate.Session, Call: r.id, Ask: c.Ask, Progress: c.Progress, Context: r.context, Envelope: r.envelope, Keep: c.Keep}
	if s.gate.Within != nil {
		env.Within = s.gate.Within()
	}
	return env
}

// judge returns the tool's own refusal of the call, or nil. Arguments that do not fit the
// tool's type are refused later, when the tool runs.
func (r *invocation) judge(env Env) *Error {
	switch {
	case r.outside != nil:
		return r.outside
	case r.tool.judge == nil || r.err != nil:
		return nil
	}
	if err := r.tool.judge(env, r.value); err != nil {
		return asError(err)
	}
	return nil
}

// The outcomes of a call's events, beside the codes of errors.
const (
	outcomeOK    = "ok"
	outcomeAsked = "asked the user"
)

// decide decides about a call. Its error is the refusal.
func (s *Set) decide(ctx context.Context, c Call, r *invocation) *Error {
	rules := s.rules()
	d := s.judge(rules, r.name)
	r.allowed, r.version, r.content, r.paths = d, rules.Version(), "", nil
	// Never log filtered arguments, even when another rule refuses the call.
	held := func() (string, *Error) {
		rule, err := filtered(ctx, s.gate.Examiners, rules.FiltersOf(r.name), r.args, r.said())
		if rule != "" || err != nil {
			r.path, r.target = "", ""
		}
		return rule, err
	}
	if !d.Allow && !d.Ask {
		_, _ = held() // the call is refused whatever the filters return
		err := s.noSuchTool(r.name)
		if err.by = d; r.inner { // the alias is there
			err.Message, err.Hint = fmt.Sprintf("%s is not allowed here", r.name), ""
		}
		return err
	}
	if err := validate(r.tool, r.args); err != nil {
		_, _ = held() // the call is refused whatever the filters return
		return err
	}
	if rule, err := held(); err != nil {
		return err
	} else if rule != "" {
		return denied(rule)
	}
	if r.outside != nil {
		return r.outside
	}
	wanted, err := r.choose(rules)
	if err != nil {
		return err
	}
	if by := r.doer(); by != "" {
		rule, err := filtered(ctx, s.gate.Examiners, rules.FiltersOf(by), r.args, r.said())
		if err != nil {
			return err
		} else if rule != "" {
			return denied(rule)
		}
		r.doing = s.versionOf(by)
	}
	r.told = s.env(c, r)
	if err := r.judge(r.told); err != nil {
		return err
	}
	if wanted.Ask && !d.Ask {
		d = wanted
	}
	r.args.value = nil // frees memory: schemas and filters are done, and an approval may take long
	// Rates come last, so that they do not count refused calls.
	count := func() error { return s.count(r.rates(rules), r.name) }
	if d.Ask {
		return s.approved(ctx, r, d, rules.Version(), count)
	}
	return unanswered(count())
}

// denied returns the error of a call whose arguments a filter refuses.
func denied(rule string) *Error {
	return &Error{Code: Denied, Message: "the arguments hold what the operator does not allow",
		by: scope.Decision{Kind: scope.KindFilter, Rule: rule}}
}

// count counts a call against the rates of its tool.
func (s *Set) count(limits []scope.Rate, tool string) error {
	rule, wait, err := s.gate.Rates.take(limits)
	if err != nil {
		return notRun("the call cannot be counted", err)
	}
	if rule != "" {
		return &Error{Code: RateLimited, Message: fmt.Sprintf("too many calls of %s", tool),
			Hint: fmt.Sprintf("try again in %v", wait.Round(100*time.Millisecond)+100*time.Millisecond),
			by:   scope.Decision{Kind: scope.KindRate, Rule: rule}}
	}
	return nil
}

// refuse records the refusal of a call and returns its error.
func (s *Set) refuse(ctx context.Context, r *invocation, e *Error) error {
	by, verdict, ok := e.decided()
	if !ok { // the arguments are malformed, or the client has disconnected
		by, verdict = e.by, audit.Deny
		if by.Rule == "" && (e.Code == Invalid || e.Code == TooLarge) {
			by = scope.Decision{Kind: scope.KindSchema, Rule: ruleSchema}
		}
	}
	event := audit.Event{Event: audit.KindCall, Agent: string(s.gate.Agent), Session: s.gate.Session, Call: r.id, Op: r.name,
		Path: r.path, Target: r.target, Verdict: verdict, Rule: by.Rule, RuleKind: string(by.Kind),
		Outcome: string(e.Code), Trace: r.trace.String()}
	if by.Kind == scope.KindContext {
		r.describe(&event)
	}
	switch {
	case e.ApprovalID != "":
		event.Detail = "approval " + e.ApprovalID
		if e.outcome != "" {
			event.Detail += ", " + e.outcome
		}
	case e.cause != nil:
		event.Detail = e.cause.Error()
	}
	// Record the attempt even if the client has disconnected.
	if err := s.gate.Record(context.WithoutCancel(ctx), event); err != nil {
		return notRun("the call cannot be recorded", err)
	}
	return e
}

// unavailable records that an allowed call did not run, and returns the error.
func (s *Set) unavailable(ctx context.Context, r *invocation, cause error) *Error {
	own, said := errors.AsType[*Error](cause)
	if said && own.cause != nil {
		cause = own.cause
	}
	event := audit.Event{Event: audit.KindCall, Agent: string(s.gate.Agent), Session: s.gate.Session, Call: r.id, Op: r.name,
		Verdict: audit.Allow, Outcome: string(Unavailable), Detail: cause.Error(), Trace: r.trace.String()}
	if err := s.gate.Record(context.WithoutCancel(ctx), event); err != nil {
		return notRun("the call cannot be recorded", err)
	}
	if said {
		return own
	}
	e := Errorf(Unavailable, "the server of %.200q cannot be used now", r.name)
	e.Hint = "try again; the operator's log has the cause"
	return e
}

// noSuchTool returns the error of an unknown tool, and of a tool that the agent may not
// call. The hint names a tool that it may call.
func (s *Set) noSuchTool(name string) *Error {
	e := &Error{Code: Denied, Message: fmt.Sprintf("there is no tool %.64q here", name),
		by: scope.Decision{Kind: scope.KindNeed, Rule: "no such tool"}}
	var names []string
	for _, t := range s.List() {
		names = append(names, t.Name)
	}
	if near := nearest.Of(name, names); near != "" {
		e.Hint = fmt.Sprintf("did you mean %s?", near)
	}
	return e
}

// turn waits for one of the tool's Hints.Turns, if it has them. end is never nil.
func (t *Tool) turn(ctx context.Context, id scope.ID) (end func(), err error) {
	if t.Hints.Turns == nil {
		return func() {}, nil
	}
	bounded, cancel := context.WithTimeout(ctx, turnWait)
	defer cancel()
	end, err = t.Hints.Turns.Take(bounded, id)
	switch {
	case err == nil:
		return end, nil
	case ctx.Err() != nil:
		return func() {}, &Error{Code: Internal, Message: "the call was cancelled", cause: ctx.Err()}
	}
	e := Errorf(RateLimited, "too many calls of %s are running", t.Name)
	e.Hint = "wait for your other calls"
	return func() {}, e
}

// turnWait bounds the wait for a turn. An agent that holds no turn gets one at once.
const turnWait = 10 * time.Second

// run runs the tool of a call. Meanwhile the processes that the call starts see its context.
func (s *Set) run(ctx context.Context, r *invocation) (Result, error) {
	hide, err := s.show(r)
	if err != nil {
		return Result{}, Errorf(Unavailable, "the context of the call cannot be shown").Because(err)
	}
	defer hide()
	return run(ctx, r.tool, r.told, r.value)
}

// run runs the tool, and turns a panic into an error.
func run(ctx context.Context, t *Tool, env Env, in any) (result Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			result, err = Result{}, fmt.Errorf("panic in %s: %v", t.Name, p)
		}
	}()
	result, err = t.run(ctx, env, in)
	if err != nil && ctx.Err() != nil {
		return Result{}, &Error{Code: Internal, Message: "the call was cancelled", cause: errors.Join(ctx.Err(), err)}
	}
	if err == nil && result.size() > maxResult {
		return Result{}, Errorf(TooLarge, "the result has %d bytes, and %d are the limit", result.size(), maxResult)
	}
	return result, err
}

// newID returns the id of a call: 13 random characters. It fits into a thread's name
// (prctl(2), PR_SET_NAME), which assigns a file tool's system calls to the call.
func newID() string {
	return strings.ToLower(rand.Text()[:13])
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// hash returns the hash of everything that the agent gets.
func (r Result) hash() string {
	h := sha256.New()
	h.Write(r.Structured)
	for _, c := range r.Content {
		fmt.Fprintf(h, "\x00%s\x00%d\x00", c.MIME, len(c.Text))
		h.Write([]byte(c.Text))
		h.Write(c.Data)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}
