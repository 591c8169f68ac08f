package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/ask"
)

// nobody is the hint for a client whose call nobody can approve.
// It names no directory, because an agent gets it.
func (a *Agent) nobody() string { return "ask your operator, who can " + a.attend("DIR") }

// attend returns the command that makes approvals possible where there are none: a command
// without a daemon cannot wait for one. dir stands for the directory; "": its name.
func (a *Agent) attend(dir string) string {
	words := []string{"scopefs", "daemon"}
	if !a.Root {
		words = append(words, "--user")
	}
	flag, name := "--base", a.Paths.Base
	if def, err := a.Definition(); err == nil && def.Dir != "" {
		if p, err := config.ProjectOf(def.Dir); err == nil && p.Base == a.Paths.Base {
			flag, name = "--dir", def.Dir
		}
	}
	return "approve in another terminal: " + printable.Command(append(words, flag, cmp.Or(dir, name))...)
}

// prompt asks the operator whether a client's program may use a tool of its own. The
// approval is for one use, under the current rules.
func (c *client) prompt(ctx context.Context, env tools.Env, r ask.Permission) ask.Verdict {
	p := approvals.Approval{
		Agent: c.agent.id, Chain: c.chain(), Session: c.name, Tool: ask.PromptName + ":" + r.Tool, Arguments: slices.Clone(r.Input),
		Policy: c.rules().Version(), Rule: "the client's program asks",
	}
	if command, ok := r.Shell(); ok {
		p.Kind, p.Subject = approvals.KindCommand, command
	}
	ctx, cancel := context.WithTimeout(ctx, c.agent.Settings.Approve.Wait)
	defer cancel()
	said, err := c.agent.Approvals().Wait(ctx, p, func(a approvals.Approval) error {
		outcome := audit.OutcomeUsed
		if a.State == approvals.Waits {
			outcome = audit.OutcomeAsked
		}
		return c.agent.Record(context.WithoutCancel(ctx),
			audit.Event{Event: audit.KindApproval, Agent: string(p.Agent), Session: c.name, Chain: p.Chain, Call: env.Call,
				Op: p.Tool, Target: p.Subject, Rule: p.Rule, Outcome: outcome, Detail: a.ID})
	})
	switch {
	case errors.Is(err, approvals.ErrNobody):
		return ask.Verdict{Why: err.Error() + ": " + c.agent.nobody()}
	case err != nil:
		return ask.Verdict{Why: "the operator cannot be asked: " + err.Error()}
	case said.State == approvals.Denied && said.Reason != "":
		return ask.Verdict{Why: "the operator has denied it: " + said.Reason}
	case said.State == approvals.Denied:
		return ask.Verdict{Why: "the operator has denied it"}
	case said.State == approvals.Waits && ctx.Err() == context.DeadlineExceeded:
		return ask.Verdict{Why: fmt.Sprintf("timed out: the operator has not decided about approval %s: try again later", said.ID)}
	case said.State == approvals.Waits:
		return ask.Verdict{Why: fmt.Sprintf("the operator has not decided yet about approval %s: try again later", said.ID)}
	case c.rules().Version() != p.Policy:
		return ask.Verdict{Why: "the rules have changed meanwhile: try again"}
	}
	return ask.Verdict{Granted: true}
}
