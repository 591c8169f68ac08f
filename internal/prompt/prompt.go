// Package prompt asks the user of a run, on the run's own terminal, about what needs approval. It decides as scopefs
// approvals does, through the control API.
package prompt

import (
	"context"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/amend"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/terminal"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/approvals"
)

// patience bounds a question: less than a connection waits for the operator.
const patience = 40 * time.Second

// Prompt asks about the requests of an agent that come after New.
type Prompt struct {
	agent scope.ID
	began time.Time

	paths   config.Paths
	client  *api.Client
	mu      sync.Mutex
	ended   map[string]context.CancelFunc // of the questions that wait or are asked, by id
	refused map[string]bool               // connections that the user has refused in this run
	quiet   bool                          // the user wants no more questions
}

// New returns a prompt; nil, which asks nothing, without a terminal.
func New(agent scope.ID, terminal bool) *Prompt {
	if !terminal {
		return nil
	}
	return &Prompt{agent: agent, began: time.Now(), ended: map[string]context.CancelFunc{}, refused: map[string]bool{}}
}

// Of returns the function that asks for a daemon until its ctx ends: one question a request, one by one.
func (p *Prompt) Of(daemon config.Paths) func(context.Context, terminal.Ask) {
	if p == nil {
		return nil
	}
	p.paths, p.client = daemon, api.NewClient(daemon)
	return p.run
}

func (p *Prompt) run(ctx context.Context, ask terminal.Ask) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	waiting := make(chan func(), 64) // as many as may wait of an agent
	go func() {
		defer stop()
		_ = p.client.WatchApprovals(ctx, func(u approvals.Update) error {
			switch of := u.Approval; {
			case of.Agent != p.agent || of.Asked.Before(p.began):
			case u.Outcome != approvals.Waits:
				p.mu.Lock()
				if end := p.ended[of.ID]; end != nil {
					end()
				}
				p.mu.Unlock()
			default:
				asked, end := context.WithTimeout(ctx, patience)
				p.mu.Lock()
				p.ended[of.ID] = end
				p.mu.Unlock()
				select {
				case waiting <- func() { p.decide(ctx, asked, of.ID, ask) }:
				default: // it waits for scopefs approvals
				}
			}
			return nil
		})
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case next := <-waiting:
			next()
		}
	}
}

// The answers.
const (
	once      = "o"
	session   = "s"
	directory = "d"
	always    = "a"
	no        = "n"
	never     = "q"
)

// decide asks about a request until asked ends. Without an answer a connection is refused, and a call waits on.
func (p *Prompt) decide(ctx, asked context.Context, id string, ask terminal.Ask) {
	of, err := p.client.Approval(ctx, id)
	if err != nil || of.State != approvals.Waits {
		return
	}
	what := of.Tool + " " + of.Subject + of.Object.Path
	for failed := ""; ; {
		key := no
		if !p.quiet && !p.refused[what] {
			key = ask(asked, questionOf(of, failed))
		}
		switch key {
		case once:
			_, err = p.client.Approve(ctx, id, api.DecideRequest{Shown: of.Hash})
		case session:
			_, err = p.client.Approve(ctx, id, api.DecideRequest{Shown: of.Hash, Standing: &approvals.Terms{Session: true}})
		case directory:
			_, err = p.client.Approve(ctx, id, api.DecideRequest{Shown: of.Hash, Standing: &approvals.Terms{Session: true, Pattern: around(of)}})
		case always:
			err = p.always(ctx, of)
		case "":
			if asked.Err() == nil || asked.Err() == context.Canceled || !of.Lasting { // decided elsewhere, or the run has ended
				return
			}
			fallthrough
		default:
			p.quiet = p.quiet || key == never
			p.refused[what] = of.Lasting
			_, err = p.client.Deny(ctx, id, api.DecideRequest{})
		}
		if err == nil || ctx.Err() != nil || asked.Err() != nil {
			return
		}
		failed = "  ! " + printable.Text(err.Error()) + "\n"
	}
}

// granted is the access that an approval of a path gives it.
var granted = map[string]scope.Access{approvals.PathRead: scope.Read, approvals.PathWrite: scope.Write, approvals.PathWhole: scope.Write}

// around returns the pattern of all that is in the directory of a path; "" for one at the top.
func around(of approvals.Approval) string {
	if dir := path.Dir(of.Object.Path); dir != "." {
		return scope.QuotePattern(dir) + "/**"
	}
	return ""
}

// always writes the rule that allows the host, the tool or the path, and then approves the request.
func (p *Prompt) always(ctx context.Context, of approvals.Approval) error {
	d, err := amend.Open(p.paths, p.agent)
	if err != nil {
		return err
	}
	change := amend.Change{Name: of.Tool, Kind: amend.Tool}
	if of.Kind == approvals.KindHost {
		change = amend.Change{Name: of.Subject, Kind: amend.Host}
	}
	if what, root := of.OfPath(); what != "" {
		err = d.Answer(root, of.Object.Path, granted[what])
	} else {
		_, err = d.Allow(change)
	}
	if err == nil {
		err = d.Write()
	}
	if err == nil {
		_, _, err = amend.Reload(ctx, p.client, p.agent)
	}
	if err == nil {
		_, err = p.client.Approve(ctx, of.ID, api.DecideRequest{})
	}
	return err
}

// questionOf describes a request within the rows of a terminal. failed is a line about the last answer; "": there was none.
func questionOf(of approvals.Approval, failed string) terminal.Question {
	var options []terminal.Option
	option := func(key, text string) {
		options = append(options, terminal.Option{Key: key, Text: text, Grants: key != no && key != never})
	}
	what, root := of.OfPath()
	switch {
	case what == approvals.PathWhole:
		option(once, "allow this directory for 15 minutes")
		option(session, "allow this directory until the session ends")
	case what != "":
		option(once, "allow this file for 15 minutes")
		option(session, "allow this file until the session ends")
		if dir := around(of); dir != "" {
			option(directory, "allow "+printable.Text(dir)+" until the session ends")
		}
	case of.Lasting:
		option(once, "allow this host for 15 minutes")
		option(session, "allow this host until the session ends")
	default:
		option(once, "allow this call once")
		option(session, "allow the same calls until the session ends")
	}
	switch {
	case of.Chain != "": // the rules of several agents decide
	case what == approvals.PathWhole:
		option(always, "allow this directory always: writes the root into the definition")
	case what != "":
		option(always, "allow all that this rule is about, always: writes "+granted[what].String()+" into the definition")
	case of.Kind == approvals.KindHost && of.Tool == "network" && !amend.Own(of.Subject): // scopefs allow shows what that opens
		option(always, "allow this host always: writes the rule into the definition")
	case of.Kind != approvals.KindHost && !strings.Contains(of.Tool, ":"):
		option(always, "allow all calls of this tool always: writes the rule into the definition")
	}
	option(no, "no; so is no answer for 40 s")
	option(never, "no, and ask nothing more in this run; so is Ctrl-C")
	text := func(rows, width int) string {
		rows = max(rows-len(options), 4)
		if of.Kind == approvals.KindHost {
			return fmt.Sprintf("%s of %s connects to %s (%s)\n", printable.Text(of.Tool), printable.Text(of.Whose()),
				printable.Text(of.Subject), printable.Text(of.Rule)) + failed
		}
		if what != "" {
			return fmt.Sprintf("%s %s (%s)\n", printable.Text(of.Whose()), printable.Text(of.Describe(what, root)), printable.Text(of.Rule)) + failed
		}
		lines := strings.Split(strings.TrimSuffix(report.Call(of, rows, width), "\n"), "\n")
		if len(lines) > rows {
			more := len(lines) - rows + 1
			lines = append(lines[:rows-1], fmt.Sprintf("  ! %d more lines: scopefs approvals show %s", more, of.ID))
		}
		return strings.Join(lines, "\n") + "\n" + failed
	}
	return terminal.Question{Text: text, Options: options}
}
