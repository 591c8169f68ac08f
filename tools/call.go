package tools

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
)

// Call is what an agent asks for.
type Call struct {
	Tool string
	Args json.RawMessage // an object; nothing is {}

	Context *scoped.Environment // of the client's session: the call sees of it what it selects

	// Beside is what the client says of the call beside Args: an object with members
	// of the envelope, and perhaps _context, an environment in the place of Context.
	// Nothing is {}. What Args say, too, is the same there.
	Beside json.RawMessage

	// Keep replaces the environment for later calls; nil where none is kept.
	Keep func(*scoped.Environment) error

	// Holds is called with the id of an approval when the call starts to wait for it,
	// and with "" when the call goes on. nil is not called.
	Holds func(approval string)

	// Ask puts a question to the client's user, or ends the call by an [Asked];
	// nil where there is no user.
	Ask func(context.Context, Question) (Answer, error)

	done func() // ends its turn
}

// Call runs a tool: validate, decide, record the beginning, run, record the
// end. It is the only way to run one. The error is an *[Error] or an *[Asked].
func (s *Set) Call(ctx context.Context, c Call) (Result, error) {
	name := strings.TrimPrefix(c.Tool, "builtin:")
	ran, ok := s.running.Try()
	if !ok {
		return Result{}, s.refuse(ctx, &request{name: name}, Errorf(RateLimited, "%d calls are running already", maxRunning))
	}
	defer ran()
	release, full := s.gate.Rates.hold(len(c.Args) + len(c.Beside))
	if full != "" {
		return Result{}, s.refuse(ctx, &request{name: name}, Errorf(RateLimited, "%s", full))
	}
	defer release()
	done, err := s.gate.Queue.Take(ctx, s.gate.Agent)
	if err != nil {
		return Result{}, s.refuse(ctx, &request{name: name}, &Error{Code: Internal, Message: "the call was cancelled", cause: err})
	}
	defer done()
	c.done = done
	said, text, bad := c.cut(name)
	if bad != nil {
		return Result{}, s.refuse(ctx, &request{name: name}, bad)
	}
	args, bad := parse(text)
	if bad != nil {
		return Result{}, s.refuse(ctx, &request{name: name}, bad)
	}
	alias := s.aliases[name]
	if alias == nil {
		if s.covered[name] { // offered under other names
			return Result{}, s.refuse(ctx, &request{name: name}, s.noSuchTool(name))
		}
		return s.one(ctx, c, &request{name: name, args: args, given: said})
	}
	if !s.mayAny(s.rules(), alias) {
		return Result{}, s.refuse(ctx, &request{name: name}, s.noSuchTool(name))
	}
	if err := validate(alias, args); err != nil {
		return Result{}, s.refuse(ctx, &request{name: name}, err)
	}
	inner, render, err := alias.face.read(args.canonical)
	if err != nil {
		return Result{}, s.refuse(ctx, &request{name: name}, asError(err))
	}
	if len(inner) == 0 { // it would be neither decided nor recorded
		return Result{}, s.refuse(ctx, &request{name: name}, Errorf(Internal, "%s stands for no call", name))
	}
	var all []Result
	for _, in := range inner {
		text, err := json.Marshal(in.Args)
		if err != nil {
			return Result{}, asError(err)
		}
		args, bad := parse(text)
		if bad != nil {
			return Result{}, s.refuse(ctx, &request{name: in.Tool}, bad)
		}
		r, err := s.one(ctx, c, &request{name: in.Tool, args: args, inner: true, given: said})
		if failed, ok := errors.AsType[*Error](err); ok && in.Optional {
			r, err = Result{Content: []Content{{Text: failed.Error()}}}, nil
		}
		if err != nil {
			return Result{}, err
		}
		all = append(all, r)
	}
	return render(all), nil
}

// request is one call of one tool, on its way through the door.
type request struct {
	name    string
	tool    *Tool
	args    *arguments
	inner   bool           // it is what an alias stands for
	decoded                // its arguments as the tool takes them
	allowed scope.Decision // that it may run
	version string         // of the rules by which it was allowed
	doing   string         // the version of the tool that does it, see doer
	id      string
	told    Env               // passed to the tool
	objects map[string]Object // for which it was approved
	given
}

// one takes a call of a tool by its own name through the door.
func (s *Set) one(ctx context.Context, c Call, r *request) (Result, error) {
	r.id = newID()
	defer func() { c.done() }() // it may be another turn than it came with
	if err := s.permit(ctx, &c, r); err != nil {
		return Result{}, err
	}
	return s.admitted(ctx, c, r)
}

// find looks up the tool of a call and reads its arguments. Its error is recorded.
func (s *Set) find(ctx context.Context, r *request) error {
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
func (r *request) complete() *Error {
	if len(r.tool.Defaults) == 0 {
		return nil
	}
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(r.args.canonical, &all); err != nil {
		return asError(err) // cannot happen: parse has read them
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

// admitted runs a call that may run.
func (s *Set) admitted(ctx context.Context, c Call, r *request) (Result, error) {
	began := time.Now()
	e := audit.Event{Event: audit.KindCall, Agent: string(s.gate.Agent), Session: s.gate.Session, Call: r.id, Op: r.name,
		Path: r.path, Target: r.target, Verdict: audit.Allow, Rule: r.allowed.Rule, RuleKind: string(r.allowed.Kind), Outcome: audit.OutcomeBegin, Detail: "arguments " + hash(r.args.canonical)}
	r.describe(&e)
	if err := s.gate.Record(ctx, e); err != nil {
		return Result{}, notRun("the call cannot be recorded", err)
	}
	r.told = s.env(c, r) // the operator may have narrowed the context
	ctx = context.WithValue(ctx, stillKey{}, func() error { return s.still(r) })
	if r.objects != nil {
		ctx = context.WithValue(ctx, approvedKey{}, r.objects)
	}
	if r.tool.Hints.Waits {
		c.done()
	}
	end, err := r.tool.turn(ctx, s.gate.Agent)
	defer end()
	result := Result{}
	if err == nil {
		err = Still(ctx)
	}
	if err == nil {
		err = r.err
	}
	if err == nil {
		result, err = s.run(ctx, r)
	}
	e.Outcome, e.Detail, e.DurationUS = outcomeOK, "", time.Since(began).Microseconds()
	e.Instance, e.Context = "", nil // they are in the record of the beginning
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
	// Whoever asked may be gone; that it ended is recorded all the same.
	if failed := s.gate.Record(context.WithoutCancel(ctx), e); failed != nil {
		return Result{}, &Error{Code: Unavailable, Message: "the call ran, and its end cannot be recorded",
			Hint: "look first whether it had its effect", cause: failed}
	}
	return result, err
}

// env returns the Env that the door passes to the tool of a call.
func (s *Set) env(c Call, r *request) Env {
	env := Env{Agent: s.gate.Agent, Within: []scope.ID{s.gate.Agent}, Session: s.gate.Session, Call: r.id, Ask: c.Ask, Context: r.context, Envelope: r.envelope, Keep: c.Keep}
	if s.gate.Within != nil {
		env.Within = s.gate.Within()
	}
	return env
}

// judge returns why the tool itself refuses the call; nil if it does not. Arguments that do
// not fit the tool's type are refused when the tool is to run.
func (r *request) judge(env Env) *Error {
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

// decide decides about a call. What it returns is why not.
func (s *Set) decide(ctx context.Context, c Call, r *request) *Error {
	rules := s.rules()
	d := s.judge(rules, r.name)
	r.allowed, r.version = d, rules.Version()
	// What filters hold back is not for the log either, whyever a call is refused.
	held := func() (string, *Error) {
		rule, err := filtered(ctx, s.gate.Examiners, rules.FiltersOf(r.name), r.args, r.said())
		if rule != "" || err != nil {
			r.path, r.target = "", ""
		}
		return rule, err
	}
	if !d.Allow && !d.Ask {
		_, _ = held() // the refusal stands, whatever the filters return
		err := s.noSuchTool(r.name)
		if err.by = d; r.inner { // the alias is there
			err.Message, err.Hint = fmt.Sprintf("%s is not allowed here", r.name), ""
		}
		return err
	}
	if err := validate(r.tool, r.args); err != nil {
		_, _ = held() // the refusal stands, whatever the filters return
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
	r.args.value = nil // schemas and filters are done; an approval may take long
	// Rates come last: a call that is refused uses nothing up.
	count := func() *Error { return s.count(r.rates(rules), r.name) }
	if d.Ask {
		return s.approved(ctx, r, d, rules.Version(), count)
	}
	return count()
}

// denied returns the error of a call with arguments that a filter refuses.
func denied(rule string) *Error {
	return &Error{Code: Denied, Message: "the arguments hold what the operator does not allow", by: scope.Decision{Kind: scope.KindFilter, Rule: rule}}
}

// count counts a call of a tool against the limits.
func (s *Set) count(limits []scope.Rate, tool string) *Error {
	rule, wait, err := s.gate.Rates.take(limits)
	if err != nil {
		return notRun("the call cannot be counted", err)
	}
	if rule != "" {
		return &Error{Code: RateLimited, Message: fmt.Sprintf("too many calls of %s", tool),
			Hint: fmt.Sprintf("try again in %v", wait.Round(100*time.Millisecond)+100*time.Millisecond), by: scope.Decision{Kind: scope.KindRate, Rule: rule}}
	}
	return nil
}

// refuse records that a call is refused, and returns the error.
func (s *Set) refuse(ctx context.Context, r *request, e *Error) error {
	by, verdict, ok := e.decided()
	if !ok { // the arguments are malformed, or the client has gone
		by, verdict = e.by, audit.Deny
		if by.Rule == "" && (e.Code == Invalid || e.Code == TooLarge) {
			by = scope.Decision{Kind: scope.KindSchema, Rule: ruleSchema}
		}
	}
	event := audit.Event{Event: audit.KindCall, Agent: string(s.gate.Agent), Session: s.gate.Session, Call: r.id, Op: r.name,
		Path: r.path, Target: r.target, Verdict: verdict, Rule: by.Rule, RuleKind: string(by.Kind), Outcome: string(e.Code)}
	if by.Kind == scope.KindContext {
		r.describe(&event)
	}
	switch {
	case e.ApprovalID != "":
		event.Detail = "approval " + e.ApprovalID
	case e.cause != nil:
		event.Detail = e.cause.Error()
	}
	// Whoever asked may be gone; that it was tried is recorded all the same.
	if err := s.gate.Record(context.WithoutCancel(ctx), event); err != nil {
		return notRun("the call cannot be recorded", err)
	}
	return e
}

// unavailable records that a call did not run though it may, and returns the error.
func (s *Set) unavailable(ctx context.Context, r *request, cause error) *Error {
	own, said := errors.AsType[*Error](cause)
	if said && own.cause != nil {
		cause = own.cause
	}
	event := audit.Event{Event: audit.KindCall, Agent: string(s.gate.Agent), Session: s.gate.Session, Call: r.id, Op: r.name,
		Verdict: audit.Allow, Outcome: string(Unavailable), Detail: cause.Error()}
	if err := s.gate.Record(context.WithoutCancel(ctx), event); err != nil {
		return notRun("the call cannot be recorded", err)
	}
	if said {
		return own
	}
	e := Errorf(Unavailable, "%s", Clip(Clean(cause.Error()), 2<<10))
	e.Hint = "the server may be there when it is called again"
	return e
}

// noSuchTool is also what an agent is told of a tool that it may not call.
// The hint is of those that it may call.
func (s *Set) noSuchTool(name string) *Error {
	e := &Error{Code: Denied, Message: fmt.Sprintf("there is no tool %.64q here", name), by: scope.Decision{Kind: scope.KindNeed, Rule: "no such tool"}}
	var names []string
	for _, t := range s.List() {
		names = append(names, t.Name)
	}
	if near := Nearest(name, names); near != "" {
		e.Hint = fmt.Sprintf("did you mean %s?", near)
	}
	return e
}

// turn waits for a turn of the tool, if it has some. end is never nil.
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

// turnWait bounds the wait for a turn. An agent that has none gets one at once.
const turnWait = 10 * time.Second

// run runs the tool of a call while what the call starts can see its context.
func (s *Set) run(ctx context.Context, r *request) (Result, error) {
	hide, err := s.show(r)
	if err != nil {
		return Result{}, Errorf(Unavailable, "the context of the call cannot be shown").Because(err)
	}
	defer hide()
	return run(ctx, r.tool, r.told, r.value)
}

// run runs the tool, of which nothing else than an error may come out.
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

// newID returns the id of a call: 13 characters, no two alike. It fits into a
// thread's name (prctl(2), PR_SET_NAME), by which a file tool's work is told apart.
func newID() string {
	var b [8]byte
	rand.Read(b[:])
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// hash is over everything that the agent gets.
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
