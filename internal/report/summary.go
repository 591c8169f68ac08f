package report

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/scope"
)

// maxSummary limits the denials of a summary that differ.
const maxSummary = 10_000

// Refused are equal denials: of the same agent, operation, path or host, and rule.
type Refused struct {
	Count   int64         `json:"count"` // with those that the log left out
	Agent   string        `json:"agent,omitempty"`
	Event   string        `json:"event"`
	Op      string        `json:"op,omitempty"`
	Of      string        `json:"of,omitempty"` // as in the log; a path, a host or a server's tool
	Verdict audit.Verdict `json:"verdict"`
	Rule    string        `json:"rule,omitempty"`
	Kind    string        `json:"rule_kind,omitempty"`
	First   time.Time     `json:"first"`
	Last    time.Time     `json:"last"`
	Seq     uint64        `json:"seq"`               // of the last: scopefs why explains it
	Now     string        `json:"now,omitempty"`     // what the current rules decide
	Command string        `json:"command,omitempty"` // that would allow it

	last audit.Event
}

// Refusals is a summary of denials, most first.
type Refusals []*Refused

// refusalKey is what equal denials share.
type refusalKey struct {
	agent, event, op, of, rule, kind string
	verdict                          audit.Verdict
}

// Summarize prints how often what was denied, by which rule, and what would allow it. It returns the number of denials.
// words has those by which a command names an agent.
func Summarize(ctx context.Context, p config.Paths, sel Selection, words func(scope.ID) []string, asJSON bool, stdout, stderr io.Writer) (int, error) {
	known := definitions.Read(p, nil)
	list, n, err := Denials(ctx, p, sel, func(e audit.Event) (now, command string) { return Explain(p, known, e, words) }, stderr)
	print := list.Print
	if asJSON {
		print = func(w io.Writer) error { return JSON(w, list) }
	}
	return n, cmp.Or(print(stdout), err)
}

// Denials returns how often what was denied, by which rule, and what would allow it, and the number of denials. stderr gets
// what was left out.
func Denials(ctx context.Context, p config.Paths, sel Selection, explain func(audit.Event) (now, command string), stderr io.Writer) (list Refusals, n int, err error) {
	all := map[refusalKey]*Refused{}
	left := 0
	sel.Denied = true
	n, err = selected(ctx, p.Audit(), sel.events(ctx, p.Audit(), false), stderr, func(e audit.Event) error {
		key := refusalKey{e.Agent, e.Event, e.Op, e.Path, e.Rule, e.RuleKind, e.Verdict}
		if e.Event == audit.KindNetwork {
			key.of = hostOf(e)
		}
		r := all[key]
		if r == nil && len(all) == maxSummary {
			left++
			return nil
		}
		if r == nil {
			r = &Refused{Agent: key.agent, Event: key.event, Op: key.op, Of: key.of, Verdict: key.verdict,
				Rule: key.rule, Kind: key.kind, First: e.Time}
			all[key] = r
		}
		r.Count += 1 + e.Unrecorded
		r.Last, r.Seq, r.last = e.Time, e.Seq, e
		return nil
	})
	if left > 0 {
		fmt.Fprintf(stderr, "scopefs: %d denials are left out: %d differ already: give --agent or --since\n", left, maxSummary)
	}
	list = Refusals{}
	for _, r := range all {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b *Refused) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Seq, b.Seq)) })
	for _, r := range list[:min(len(list), 100)] {
		r.Now, r.Command = explain(r.last)
	}
	return list, n, err
}

// Explain returns what the current rules decide about a denial, and the command that would allow it.
func Explain(p config.Paths, known *definitions.Set, e audit.Event, words func(scope.ID) []string) (now, command string) {
	reason, err := why(p, known, e)
	if err != nil {
		return "", ""
	}
	reason.Suggest(p, known, words)
	return reason.Now, reason.Command
}

// Print prints a row for each, and the command that would allow it in the next line.
func (list Refusals) Print(w io.Writer) error {
	var t Table
	for _, r := range list {
		t.Row(fmt.Sprint("×", r.Count), r.Agent, r.Verdict, r.Op, quoted(r.Of), "("+r.Rule+")", fmt.Sprint("why ", r.Seq))
		switch {
		case r.Command != "":
			t.Row("", r.Command)
		case r.Now == "allow":
			t.Row("", "allowed now")
		}
	}
	return t.Print(w)
}
