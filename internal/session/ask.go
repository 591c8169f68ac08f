package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/approvals"
)

// errNoQuestion is the error of a question that the rules do not ask, or that no operator could read.
var errNoQuestion = errors.New("the rules leave nothing to the operator")

// Ask implements view.Agent. A grant holds for all sandboxes of the agent, as the view does.
func (a *Agent) Ask(ctx context.Context, q Question) (said Answer, err error) {
	from, of := a.originOf(q.PID), a
	if root := a.rootOf(); root != nil {
		of = root
	}
	if q.Whole && from.session == "" {
		return Answer{Outside: true}, nil
	}
	p, err := a.pathApproval(of, q, from)
	if err != nil || a.Approvals() == nil {
		return said, cmp.Or(err, errNoQuestion)
	}
	decided, err := a.Approvals().Wait(ctx, p, func(made approvals.Approval) error {
		outcome := audit.OutcomeAsked
		if made.State == approvals.Stands {
			outcome = audit.OutcomeUsed
		}
		a.drainView()
		return of.Record(context.WithoutCancel(ctx), audit.Event{Event: audit.KindApproval, Agent: string(of.id), Session: from.session,
			Parent: from.parent, Op: made.Tool, Target: string(p.Arguments), Rule: made.Rule, Outcome: outcome, Detail: made.ID})
	})
	if err != nil || decided.State == approvals.Waits {
		of.undecided(p, decided.ID, from)
	}
	if err != nil || decided.State != approvals.Granted && decided.State != approvals.Stands {
		return said, err
	}
	said.Grant = &scope.Grant{}
	if !q.Whole {
		said.Grant = &scope.Grant{Pattern: scope.QuotePattern(q.Path), Write: q.Write}
		if decided.State == approvals.Stands {
			said.Grant.Pattern = cmp.Or(decided.Pattern, said.Grant.Pattern)
		}
	}
	said.Outlast = func(ctx context.Context) {
		a.Approvals().Outlast(ctx, func() (approvals.Approval, error) { return a.pathApproval(of, q, from) })
	}
	return said, nil
}

// undecided says to the run that a question is of that it waits for the operator, or with id "" that it does not: nobody could decide.
func (a *Agent) undecided(p approvals.Approval, id string, from origin) {
	a.mu.Lock()
	var asked func(text, remedy string)
	for _, box := range a.sessions {
		if box.Name == from.session {
			asked = box.asked
		}
	}
	a.mu.Unlock()
	if asked == nil {
		return
	}
	what, root := p.OfPath()
	remedy := printable.Command("scopefs", "approvals", "approve", id)
	switch {
	case id != "":
	case root != "":
		remedy = printable.Command("scopefs", "run", "--with", root)
	default:
		remedy = a.attend("")
	}
	asked(fmt.Sprintf("it %s, which needs an approval (%s)", p.Describe(what, root), p.Rule), remedy)
}

// pathApproval returns what the operator approves of a question about a view, under the current rules of the agent of. The view may be
// the agent's: the rules say whether there is a question.
func (a *Agent) pathApproval(of *Agent, q Question, from origin) (p approvals.Approval, err error) {
	def, err := a.Definition()
	if err != nil {
		return p, err
	}
	owner, err := of.Definition()
	if err != nil {
		return p, err
	}
	policy, err := scope.Compile(def.View.PolicySpec())
	if err != nil {
		return p, err
	}
	op, kind, at := scope.OpOpen, approvals.PathRead, q.Path
	switch {
	case q.Whole:
		op, kind, at = scope.OpStat, approvals.PathWhole, "."
	case policy.Closed(): // it is open: another rule asks
		spec := def.View.PolicySpec()
		spec.Closed = false
		if policy, err = scope.Compile(spec); err != nil {
			return p, err
		}
	}
	if q.Write {
		op, kind = scope.OpOpenWrite, approvals.PathWrite
	}
	d := policy.File(op, q.Path)
	if !d.Ask || !utf8.ValidString(q.Path) {
		return p, errNoQuestion
	}
	arguments := map[string]string{"path": at}
	if of != a {
		arguments["root"] = def.Dir
	}
	text, err := json.Marshal(arguments)
	if err != nil {
		return p, err
	}
	return approvals.Approval{Agent: of.id, Session: from.session, Tool: approvals.PathTool(kind, arguments["root"]), Arguments: text,
		Policy: owner.Grants.Version(), Rule: d.Rule, Path: at, Object: approvals.Object{Path: at}, Lasting: true, Kind: approvals.KindPath}, nil
}
