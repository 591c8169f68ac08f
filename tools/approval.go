package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/approvals"
)

// permit returns nil when a call may run. A call under ask waits for the operator's
// decision, at most Gate.Wait; after each change it is looked up and decided again. The
// error has been recorded.
func (s *Set) permit(ctx context.Context, c *Call, r *invocation) error {
	limit := context.Background() // of the wait, from its beginning
	for waits := false; ; waits = true {
		if err := s.find(ctx, r); err != nil {
			return err
		}
		refused := s.decide(ctx, *c, r)
		if refused == nil {
			return nil
		}
		if refused.changed == nil || s.gate.Wait <= 0 {
			return s.refuse(ctx, r, refused)
		}
		if !waits {
			release, ok := s.gate.Approvals.Hold(s.gate.Agent)
			if !ok {
				return s.refuse(ctx, r, refused)
			}
			defer release()
			var cancel func()
			limit, cancel = context.WithTimeout(limit, s.gate.Wait)
			defer cancel()
			if c.Holds != nil {
				defer c.Holds("")
			}
		}
		if c.Holds != nil {
			c.Holds(refused.ApprovalID)
		}
		c.done()
		select {
		case <-refused.changed:
		case <-ctx.Done():
			return s.refuse(ctx, r, cancelled(ctx))
		case <-limit.Done():
			refused.Message = fmt.Sprintf("timed out: nobody has decided about this call of %s within %v", r.name, s.gate.Wait)
			refused.outcome = "timed out"
			return s.refuse(ctx, r, refused)
		case <-s.gate.Approvals.Closing():
			return s.refuse(ctx, r, refused)
		}
		var err error
		if c.done, err = s.gate.Queue.Take(ctx, s.gate.Agent); err != nil {
			c.done = func() {}
			return s.refuse(ctx, r, cancelled(ctx))
		}
		var bad *Error
		if r.args, bad = parse(r.args.canonical); bad != nil { // decide has dropped the values
			return s.refuse(ctx, r, bad)
		}
	}
}

// approved returns nil for a call that the operator has granted.
func (s *Set) approved(ctx context.Context, r *invocation, d scope.Decision, policy string, count func() error) *Error {
	nobody := &Error{Code: Denied, Message: fmt.Sprintf("%s must be approved, and nobody is here who could", r.name),
		Hint: s.gate.Nobody, by: d}
	if s.gate.Approvals == nil {
		return nobody
	}
	p := approvals.Approval{Agent: s.gate.Agent, Chain: s.gate.Chain, Session: s.gate.Session, Tool: r.name,
		Version: r.tool.Version + r.doing, Arguments: r.args.canonical,
		Policy: policy, Rule: d.Rule, Path: r.path, Kind: r.kind, Subject: r.command}
	if err := r.about(&p); err != nil {
		return asError(err)
	}
	asked, again := p, *r
	p.SetAgain(func(ctx context.Context) (approvals.Approval, error) { return s.again(ctx, again, asked) })
	if err := s.look(ctx, r, &p); err != nil {
		return err
	}
	if s.rules().Version() != policy { // hashing a large file takes long, and the agent chooses the file
		return &Error{Code: Conflict, Message: "the rules have changed meanwhile", Hint: "call again", by: d}
	}
	ctx = context.WithoutCancel(ctx) // record it even if the client has disconnected
	said, first, err := s.gate.Approvals.Ask(p, count)
	if errors.Is(err, approvals.ErrNobody) {
		return nobody
	}
	refused := unanswered(err)
	if refused != nil {
		refused.by = cmp.Or(refused.by, d)
		return refused
	}
	if refused = r.narrow(said.Granted); refused != nil {
		return refused
	}
	r.paths = said.Paths
	event := audit.Event{Event: audit.KindApproval, Agent: string(p.Agent), Session: p.Session, Call: r.id, Op: p.Tool,
		Path: p.Path, Target: r.target, Rule: d.Rule, Outcome: audit.OutcomeUsed, Detail: said.ID, Trace: r.trace.String()}
	r.describe(&event)
	switch said.State {
	case approvals.Denied:
		refused = &Error{Code: Denied, Message: fmt.Sprintf("the operator has denied this call of %s", r.name), ApprovalID: said.ID, by: d}
		if said.Reason != "" {
			refused.Message += ": " + said.Reason
			refused.Hint = "the operator gave this reason: do not make the same call again"
		}
		return refused
	case approvals.Waits:
		refused = &Error{Code: ApprovalRequired, Message: fmt.Sprintf("this call of %s must be approved by the operator", r.name),
			Hint: "call again with the same arguments when it is", ApprovalID: said.ID, by: d, changed: said.Changed()}
		if event.Outcome = audit.OutcomeAsked; !first {
			return refused
		}
	}
	if err := s.gate.Record(ctx, event); err != nil {
		return notRun("the call cannot be recorded", err)
	}
	return refused
}

// look looks up what an approval of the call is bound to, and how the call would change it.
func (s *Set) look(ctx context.Context, r *invocation, p *approvals.Approval) *Error {
	if err := s.objectsOf(ctx, r, p); err != nil {
		return asError(err)
	}
	if err := s.preview(ctx, r, p); err != nil {
		return err
	}
	return s.bind(ctx, r, p)
}

// again returns the approval that a call would need now.
func (s *Set) again(ctx context.Context, r invocation, p approvals.Approval) (approvals.Approval, error) {
	if s.rules().Version() != p.Policy {
		return p, approvals.ErrRules
	}
	if err := s.look(ctx, &r, &p); err != nil {
		return p, err
	}
	return p, nil
}

// unanswered returns the error of a call for an error of [approvals.Set.Ask] or count.
func unanswered(err error) *Error {
	e, ok := errors.AsType[*approvals.Error](err)
	switch {
	case err == nil:
		return nil
	case !ok:
		return asError(err)
	case e.Cause == nil:
		return Errorf(RateLimited, "%s", e.Message)
	}
	return notRun(e.Message, e.Cause)
}

type approvedKey struct{}

// Approved returns the objects for which the call of ctx was approved, by the paths in
// its arguments. A tool must act on these objects only.
func Approved(ctx context.Context) map[string]approvals.Object {
	objects, _ := ctx.Value(approvedKey{}).(map[string]approvals.Object)
	return objects
}

type changesKey struct{}

// Changes are the changes for which a call of a tool of [Bound] was approved.
type Changes struct {
	Hash  string
	Paths []string // patterns of the part of them that the operator approved; none: all
}

// ApprovedChanges returns what the call of ctx was approved for; the zero Changes if it needed no approval.
func ApprovedChanges(ctx context.Context) Changes {
	c, _ := ctx.Value(changesKey{}).(Changes)
	return c
}

// bind binds an approval to what the tool of [Bound] would change.
func (s *Set) bind(ctx context.Context, r *invocation, p *approvals.Approval) *Error {
	if r.tool.bind == nil {
		return nil
	}
	if r.err != nil {
		return asError(r.err)
	}
	end, err := r.tool.turn(ctx, s.gate.Agent)
	defer end()
	if err != nil {
		return asError(err)
	}
	changes, err := r.tool.bind(ctx, r.told, r.value)
	switch {
	case err != nil && ctx.Err() != nil:
		return cancelled(ctx)
	case err != nil:
		return asError(err)
	case changes.Content == "" || !bounded(changes):
		return &Error{Code: Internal, Message: "the tool failed", cause: errBounds}
	}
	r.content, p.Content, p.Changes = changes.Content, changes.Content, &changes
	return nil
}

// objectsOf looks up the objects of a call's paths and stores them in its approval.
func (s *Set) objectsOf(ctx context.Context, r *invocation, p *approvals.Approval) error {
	if r.path == "" || s.gate.Object == nil {
		return nil
	}
	writes := r.tool.Hints.Writes
	object, err := s.gate.Object(ctx, r.name, r.path, writes)
	if err != nil {
		return err
	}
	r.objects = map[string]approvals.Object{r.path: object}
	p.Object, p.Content = object, object.Content
	if r.target != "" && writes {
		object, err = s.gate.Object(ctx, r.name, r.target, true)
		r.objects[r.target], p.ReplacedObject, p.Replaced = object, object, object.Content
	}
	return err
}

// The bounds of changes, in bytes. A diff is cut where it is made.
const (
	maxChanges = 128 << 10
	maxNote    = 8 << 10
)

var errBounds = errors.New("a preview beyond its bounds")

func bounded(c approvals.Changes) bool {
	return len(c.Diff) <= maxChanges && len(c.Note) <= maxNote && c.Cut >= 0
}

// preview stores in an approval how its call would change the content that the approval
// is bound to. It skips a call that has an approval already.
func (s *Set) preview(ctx context.Context, r *invocation, p *approvals.Approval) *Error {
	if s.gate.Preview == nil || r.path == "" || s.gate.Approvals.Knows(p) {
		return nil
	}
	changes, err := s.gate.Preview(ctx, r.name, r.args.canonical)
	switch {
	case err != nil && ctx.Err() != nil:
		return cancelled(ctx)
	case err != nil:
		p.Changes = &approvals.Changes{Note: "the call would fail: " + Clip(asError(err).Error(), maxNote)}
		return nil
	case changes == (approvals.Changes{}):
		return nil
	case changes.Content != p.Content:
		return &Error{Code: Conflict, Message: "the file has changed meanwhile", Path: p.Path, Hint: "call again"}
	case !bounded(changes):
		return &Error{Code: Internal, Message: "the tool failed", cause: errBounds}
	}
	p.Changes = &changes
	return nil
}
