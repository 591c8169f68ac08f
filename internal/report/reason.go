package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/amend"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/stores"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/excess"
	"github.com/scopefs/scopefs/tools"
)

// Reason is a decision of the log and the current decision.
type Reason struct {
	Seq     uint64   `json:"seq"`
	Agent   string   `json:"agent"`
	Op      string   `json:"op"`                  // a file operation, or a tool
	Path    string   `json:"path,omitempty"`      // as in the log; of a connection its host, of a request its URL
	Did     string   `json:"did,omitempty"`       // what an event of the history did
	Verdict string   `json:"verdict,omitempty"`   // then
	Rule    string   `json:"rule,omitempty"`      // then
	Kind    string   `json:"rule_kind,omitempty"` // then
	Now     string   `json:"now,omitempty"`       // allow, ask or deny; "": unknown
	NowRule string   `json:"now_rule,omitempty"`
	Origin  string   `json:"origin,omitempty"`  // the file that has NowRule, and whose it is
	Remedy  string   `json:"remedy,omitempty"`  // the change that would allow it
	Note    string   `json:"note,omitempty"`    // why Now is unknown
	Command string   `json:"command,omitempty"` // that makes it
	Widens  []string `json:"widens,omitempty"`  // what Command allows
	Reached string   `json:"reached,omitempty"` // what the agent got

	grant  grant
	decide func(*agents.Agent) scope.Decision // which made Now; nil: no rule of a definition did
}

// Event returns an event of the log, by its number.
func Event(ctx context.Context, p config.Paths, seq uint64) (audit.Event, error) {
	return eventOf(ctx, p, seq)
}

// Why explains the decision of an event of the log, by its number.
func Why(ctx context.Context, p config.Paths, known *definitions.Set, seq uint64) (*Reason, error) {
	e, err := eventOf(ctx, p, seq)
	if err != nil {
		return nil, err
	}
	if e.Event == audit.KindHistory {
		return &Reason{Seq: e.Seq, Agent: e.Agent, Op: e.Op, Path: e.Path, Did: historyText(e)}, nil
	}
	r, err := why(p, known, e)
	if err != nil {
		return nil, err
	}
	r.Reached, err = reached(ctx, p, e)
	return r, err
}

// grant is what a command would allow an agent; the zero value is nothing.
type grant struct {
	agent scope.ID
	kind  amend.Kind
	name  string
}

// Suggest adds the command that allows what the current rules do not. words has those by which a command names an agent.
func (r *Reason) Suggest(p config.Paths, known *definitions.Set, words func(scope.ID) []string) {
	if r.Remedy != "" && r.Now != "" && r.grant.name != "" {
		var wider []excess.Excess
		r.Command, wider = amend.Command(p, known, r.grant.agent, r.grant.kind, r.grant.name, words(r.grant.agent)...)
		for _, e := range wider {
			r.Widens = append(r.Widens, e.String())
		}
	}
}

// heldOps are the operations on held changes.
var heldOps = map[string]string{
	"commit": "took over held changes", "discard": "dropped held changes", "fork": "made a branch for changes", "waits": "listed held changes",
}

// historyText describes an event of the history: the changes, the client and the outcome.
func historyText(e audit.Event) string {
	of, by := "", ""
	switch e.Op {
	case "checkpoint":
		of = "a checkpoint without a name"
		if e.Target != "" {
			of = "the checkpoint " + quoted(e.Target)
		}
	case "redo":
		of = "took the last undo back"
	case "undo":
		of = "took back the changes of " + e.Target
		if since, ok := strings.CutPrefix(e.Target, "since "); ok {
			of = "took back the changes since " + since
		}
	case "commit", "discard", "fork", "waits":
		of = heldOps[e.Op]
		if e.Target != "" {
			of += " of " + e.Target
		}
		if e.Chain != "" {
			of += " (" + e.Chain + ")"
		}
	case "pruned":
		if e.Outcome == "nearly full" {
			return "the history is nearly full, " + e.Detail
		}
		return "the oldest part of the history was given up, " + e.Detail
	}
	switch {
	case e.Session != "":
		by = strings.TrimSuffix(", for session "+e.Session+", call "+e.Call, ", call ")
	case e.UID != nil:
		by = fmt.Sprintf(", for the operator, user %d", *e.UID)
	}
	if e.Outcome == audit.OutcomeBegin {
		return of + by + ": it began; the next event " + e.Op + " has its outcome"
	}
	return of + by + ": " + strings.TrimSuffix(e.Outcome+", "+e.Detail, ", ")
}

// eventOf returns an event of the log.
func eventOf(ctx context.Context, p config.Paths, seq uint64) (audit.Event, error) {
	for e, err := range audit.Read(ctx, p.Audit(), audit.Filter{Seq: seq}, false) {
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil && e.Raw == nil { // skip a line that is no event
			return e, err
		}
		if err == nil && e.Seq == seq {
			return e, nil
		}
	}
	return audit.Event{}, fmt.Errorf("no event %d in %s: see scopefs audit --json", seq, p.Audit())
}

// reached says what the agent got of what an event is about.
func reached(ctx context.Context, p config.Paths, e audit.Event) (string, error) {
	refused := e.Verdict != audit.Allow
	end := audit.Event{}
	if e.Call != "" && (e.Event == audit.KindFile || e.Outcome == audit.OutcomeBegin) {
		var err error
		if end, err = endOf(ctx, p, e); err != nil {
			return "", err
		}
	} else if e.Event == audit.KindCall {
		end = e
	}
	switch {
	case e.Event == audit.KindNetwork && e.Bytes+e.Sent > 0:
		return fmt.Sprintf("%d bytes were received, and %d sent", e.Bytes, e.Sent), nil
	case e.Event == audit.KindNetwork && refused:
		return "nothing was sent or received: the proxy decides before it connects", nil
	case e.Event == audit.KindNetwork:
		return "the event of the end has the bytes", nil
	case e.Event == audit.KindFile && refused && end.Outcome == "ok":
		return fmt.Sprintf("nothing of it: the view refused with %s. The call around it returned %d bytes of other things",
			e.Errno, end.Bytes), nil
	case e.Event == audit.KindFile && refused:
		return fmt.Sprintf("nothing: the view refused with %s before it read or changed anything", e.Errno), nil
	case e.Event == audit.KindKey && refused:
		return "no signature", nil
	case e.Event == audit.KindKey:
		return "a signature", nil
	case e.Event == audit.KindFile:
		return "the view allowed it; the log does not have how much was read", nil
	case end.Outcome == "":
		return "unknown: the end of the call is not in the log", nil
	case end.Outcome == "ok":
		return fmt.Sprintf("the result of the call, %d bytes", end.Bytes), nil
	case end.Outcome == audit.OutcomeUnknown:
		return "unknown: the daemon ended before the call did", nil
	case refused:
		return fmt.Sprintf("nothing but the error %s", end.Outcome), nil
	}
	return fmt.Sprintf("nothing but the error %s; the tool may have done a part", end.Outcome), nil
}

// endOf returns the end of the call of an event; the zero Event if there is none.
func endOf(ctx context.Context, p config.Paths, e audit.Event) (audit.Event, error) {
	id, err := audit.Unescape(e.Agent)
	if err != nil {
		return audit.Event{}, nil
	}
	for end, err := range audit.Read(ctx, p.Audit(), audit.Filter{Agent: id, Since: e.Time}, false) {
		switch {
		case err != nil && end.Raw == nil:
			return end, err
		case err == nil && end.Event == audit.KindCall && end.Call == e.Call && end.Outcome != audit.OutcomeBegin:
			return end, nil
		}
	}
	return audit.Event{}, nil
}

// why explains an event by deciding with the current rules.
func why(p config.Paths, known *definitions.Set, e audit.Event) (*Reason, error) {
	if e.Verdict == "" {
		what := strings.Join(strings.Fields(e.Event+" "+e.Agent+" "+e.Op+" "+e.Outcome), " ")
		return nil, fmt.Errorf("event %d is no decision, but %s: choose one of scopefs audit --denied", e.Seq, what)
	}
	r := &Reason{Seq: e.Seq, Agent: e.Agent, Op: e.Op, Path: e.Path, Verdict: string(e.Verdict), Rule: e.Rule, Kind: e.RuleKind}
	if e.Event == audit.KindNetwork {
		r.Path = e.Target
	}
	if e.Verdict == audit.Violation && e.Event == audit.KindNetwork {
		r.trick(scope.Kind(e.RuleKind))
		return r, nil
	}
	if e.Verdict == audit.Violation || e.Event == audit.KindCall && e.Verdict == audit.Deny && e.RuleKind == string(scope.KindResolution) {
		r.Note = "nothing allows it: no rule reaches what is outside the scope"
		return r, nil
	}
	if e.RuleKind == string(scope.KindHistory) {
		r.Note = "the agent's changes are kept, and what this would have destroyed could not be: history: {unkept: allow} allows such changes"
		return r, nil
	}
	if e.Event == audit.KindKey {
		r.Note = "ssh_keys of the definition and run --ssh-agent name the keys that the agent may use"
		return r, nil
	}
	id, err := scope.ParseID(e.Agent)
	var agent *agents.Agent
	if err == nil {
		agent, err = known.Agent(id)
	}
	if err != nil {
		r.Note = "what holds now cannot be said: " + err.Error()
		return r, nil
	}
	switch e.Event {
	case audit.KindFile:
		err = r.file(p, known, agent, e)
	case audit.KindCall:
		err = r.call(p, known, agent, e)
	case audit.KindNetwork:
		err = r.network(agent, e)
	default:
		err = fmt.Errorf("no rule of a definition decides about %s", e.Event)
	}
	if err != nil {
		r.Note = "what holds now cannot be said: " + err.Error()
	}
	if err == nil && r.Now != "" && r.decide != nil {
		r.Origin = r.origin(p, known, agent)
	}
	return r, nil
}

// origin returns the file that has NowRule, and whose it is. It is a repository's where the definition alone decides otherwise.
func (r *Reason) origin(p config.Paths, known *definitions.Set, agent *agents.Agent) string {
	file, whose := agent.File, p.Layer(agent.File)
	const trusted = "the repository's, which you trusted"
	switch {
	case agent.TeamOf != "":
		whose = trusted
	case agent.Extension != "":
		whose = "extension " + agent.Extension
	case len(agent.Repository) > 0:
		d := r.decide(agent)
		own := known.All.Own(agent.Name)
		alone := r.decide(cmp.Or(own, agent))
		if alone.Rule, alone.Remedy = d.Rule, d.Remedy; alone != d { // the texts aside
			file, whose = agents.TrustedName(agent.Name), trusted
		}
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(p.Base, file)
	}
	text := fmt.Sprintf("%s (%s)", file, whose)
	if scope.Kind(r.Kind) != scope.KindProtect || r.grant.kind != amend.Path {
		return text
	}
	for _, list := range agent.Sources() {
		if slices.Contains(amend.Protecting(agent.View.PolicySpec(), r.grant.name), strings.TrimPrefix(list.Key, "protect.")) {
			text = fmt.Sprintf("%s (%s), named in %s", list.Key, p.Layer(list.File), text)
		}
	}
	return text
}

// file decides a file operation with the current rules.
func (r *Reason) file(p config.Paths, known *definitions.Set, agent *agents.Agent, e audit.Event) error {
	op, err := scope.ParseOp(e.Op)
	if err != nil {
		return err
	}
	rel, err := audit.Unescape(e.Path)
	if err != nil {
		return err
	}
	r.grant = grant{agent.Name, amend.Path, rel}
	kind := scope.Kind(e.RuleKind)
	if kind == scope.KindView || kind == scope.KindRoot {
		r.Now, r.NowRule, r.Note = "deny", e.Rule, "nothing allows it: the view has no such rule to change"
		return nil
	}
	links := uint64(1)
	if kind == scope.KindHardlinks { // the file had another name
		links = 2
	}
	policy, err := scope.Compile(agent.View.PolicySpec())
	if err != nil {
		return err
	}
	by := func(decide func(*scope.Policy) scope.Decision) {
		r.decide = func(a *agents.Agent) scope.Decision {
			policy, err := scope.Compile(a.View.PolicySpec())
			if err != nil {
				return scope.Decision{}
			}
			return decide(policy)
		}
	}
	by(func(p *scope.Policy) scope.Decision { return p.Linked(op, rel, links) })
	d := policy.Linked(op, rel, links)
	switch {
	case !d.Allow && policy.File(op, rel).Allow:
		r.Remedy = "set hardlinks to allow in view"
	case !d.Allow:
		r.Remedy = policy.Remedy(op, rel)
	case d.Judge != 0 && e.Verdict == audit.Deny: // the log does not hold the content
		r.Now, r.NowRule = "deny", e.Rule
		r.Remedy, r.grant = "set it on the host, or remove git-config from protect", grant{}
		return nil
	case kind == scope.KindBelow, kind == scope.KindProtect: // the object was a directory
		if moved := policy.Move(rel); !moved.Allow {
			d, r.Remedy = moved, policy.RemedyMove(rel)
			by(func(p *scope.Policy) scope.Decision { return p.Move(rel) })
		}
	}
	r.Now, r.NowRule = verdictOf(d), d.Rule
	if of := known.All.Agents[agent.RootOf]; of != nil && r.Remedy != "" {
		r.Remedy = cmp.Or(rootRemedy(p, of, agent, op, rel, d), r.Remedy)
	}
	return nil
}

// rootRemedy returns the change that would allow an operation in a root of an agent; "" if a rule of the agent's own view denies it.
func rootRemedy(p config.Paths, of, root *agents.Agent, op scope.Op, rel string, d scope.Decision) string {
	want := scope.Read
	if op.Mutates() {
		want = scope.Write
	}
	switch {
	case d.Kind != scope.KindAccess && d.Kind != scope.KindPath:
		return ""
	case root.Lent && d.Ask:
		return fmt.Sprintf("approve it (scopefs approvals), or run with --with %s, without :ask", root.Dir)
	case root.Lent && d.Kind == scope.KindAccess:
		return fmt.Sprintf("run with --with %s, without :ro", root.Dir)
	}
	for _, r := range of.View.Roots {
		if r.Dir != root.Dir {
			continue
		}
		own, err := scope.Compile(scope.PolicySpec{Paths: r.Paths})
		at := fmt.Sprintf("%s in view.roots of %s", r.Dir, of.Path(p.Base))
		switch {
		case r.Worktree != "" && d.Kind == scope.KindAccess:
			return "remove worktree from " + at + ", and give it an access: git's rules for a linked worktree hold there"
		case d.Kind == scope.KindAccess && d.Ask:
			return fmt.Sprintf("approve it (scopefs approvals), or set access: %v of %s", want, at)
		case d.Kind == scope.KindAccess:
			return fmt.Sprintf("set access: %v of %s", want, at)
		case err == nil && !own.File(op, rel).Allow:
			return fmt.Sprintf("set the access of the path to %v in paths of %s", want, at)
		}
	}
	return ""
}

// call decides a tool call with the current rules. The log does not hold its
// arguments.
func (r *Reason) call(p config.Paths, known *definitions.Set, agent *agents.Agent, e audit.Event) error {
	name, err := audit.Unescape(e.Op)
	if err != nil {
		return err
	}
	r.grant = grant{agent.Name, amend.Tool, name}
	kind := scope.Kind(e.RuleKind)
	r.decide = func(a *agents.Agent) scope.Decision { return a.Grants.Tool(name) }
	ofFile := []scope.Kind{scope.KindPath, scope.KindAccess, scope.KindHardlinks,
		scope.KindBelow, scope.KindProtect, scope.KindRoot, scope.KindView}
	d := r.decide(agent)
	if d.Allow && e.Verdict == audit.Deny && slices.Contains(ofFile, kind) {
		r.Note = "the tool is allowed; a rule about files made it fail: see the event of the file before this one"
		return nil
	}
	if target, err := audit.Unescape(e.Target); err == nil && d.Allow && e.Verdict == audit.Deny {
		switch kind {
		case scope.KindContext:
			if name == "context_set" {
				r.undecided("the tool is allowed; scopes.set decides about each scope, and none changes what the client gave",
					"name the scope in scopes.set, if the client does not give it")
				return nil
			}
			if names, _, own := agent.Grants.ContextsOf(name); own && e.Context == nil && !slices.Contains(names, target) {
				r.undecided("the tool is allowed; scopes.tools decides about the scopes of each call", "add the scope to "+name+" in scopes.tools")
				return nil
			}
			if target == "" && e.Context == nil { // see tools.Declared
				r.undecided("the tool is allowed; its schema decides about the scopes of each call: _scopes in activities.d/"+name+".json", "")
				return nil
			}
			if e.Context == nil {
				r.decide = func(a *agents.Agent) scope.Decision { return a.Grants.Context(target) }
			}
			for _, s := range e.Context { // of a call that needed an approval
				if one := agent.Grants.Context(s.Name); !one.Allow {
					r.decide = func(a *agents.Agent) scope.Decision { return a.Grants.Context(s.Name) }
				}
			}
		case scope.KindMember:
			r.decide = func(a *agents.Agent) scope.Decision { return a.Grants.Member(target) }
		case scope.KindSkill:
			skill, _, _ := strings.Cut(target, "/")
			r.decide = func(a *agents.Agent) scope.Decision { return a.Grants.Skill(skill) }
		}
		d = r.decide(agent)
		if kind == scope.KindGrant {
			r.decide = nil
			if d, err = granted(p, known, e, name, target); err != nil {
				return err
			}
		}
	}
	r.Now, r.NowRule, r.Remedy = verdictOf(d), d.Rule, d.Remedy
	if parts := strings.Split(name, ":"); len(parts) == 3 && parts[0] == "mcp" {
		if file := agent.Grants.Unseen(parts[1]); file != "" {
			r.Note = fmt.Sprintf("%s is private to the agents of %s: to share it, add %s to agents there, or set its visibility to public",
				parts[1], file, agent.Name)
		}
	}
	if !d.Allow || e.Verdict != audit.Deny {
		return nil
	}
	// The log does not have what these rules decide by.
	const tool = "the lists and the policy allow the tool; "
	switch kind {
	case scope.KindRate:
		r.undecided(tool+"rates decide about each call", "loosen "+e.Rule)
	case scope.KindFilter:
		r.undecided(tool+"argument_filters decide about each call", "loosen "+e.Rule)
	case scope.KindSchema:
		r.undecided(tool+"the arguments did not fit the tool's schema", "")
	case scope.KindStore:
		r.undecided(tool+"nothing allows this of a store", "")
	case scope.KindLimit:
		r.undecided(tool+"it reached a limit then: "+e.Rule, "")
	case scope.KindNeed:
		r.undecided(tool+"what the call needed was not there then: "+e.Rule, "")
	}
	return nil
}

// undecided says why the current rules cannot decide about an event.
func (r *Reason) undecided(note, remedy string) {
	r.Now, r.NowRule, r.Note, r.Remedy = "", "", note, remedy
}

// granted decides with the current scopefs.yaml about a call that a list there refused.
func granted(p config.Paths, known *definitions.Set, e audit.Event, tool, target string) (scope.Decision, error) {
	host, err := definitions.Host(p)
	if err != nil {
		return scope.Decision{}, err
	}
	env := tools.Env{Agent: scope.ID(e.Agent)}
	for id := range strings.SplitSeq(cmp.Or(e.Chain, e.Agent), ">") {
		who := scope.Principal{ID: scope.ID(id), Origin: scope.FromOperator}
		if agent, err := known.Agent(who.ID); err == nil {
			who = agent.Grants.Principal()
		}
		env.Within = append(env.Within, who)
	}
	d, ok, judged := stores.Judge(host.Stores, env, tool, target)
	if !judged {
		return d, fmt.Errorf("scopefs.yaml has no store with %s any more", tool)
	}
	if ok {
		d = scope.Decision{Allow: true, Kind: scope.KindGrant, Rule: "scopefs.yaml"}
	}
	return d, nil
}

// Print prints the reason.
func (r *Reason) Print(w io.Writer) error {
	what := r.Agent + " " + r.Op
	if r.Path != "" {
		what += " " + quoted(r.Path)
	}
	var text strings.Builder
	add := func(said, format string, args ...any) {
		if said != "" {
			fmt.Fprintln(&text, printable.Text(fmt.Sprintf(format, args...)))
		}
	}
	add(what, "event %d: %s", r.Seq, what)
	add(r.Did, "did: %s", r.Did)
	add(r.Verdict, "then: %s (%s)", r.Verdict, r.Rule)
	add(r.Reached, "reached the agent: %s", r.Reached)
	add(r.Now, "now: %s (%s)", r.Now, r.NowRule)
	add(r.Origin, "by the rules of: %s", r.Origin)
	add(r.Note, "%s", r.Note)
	add(r.Remedy, "to allow it: %s", r.Remedy)
	add(r.Command, "by a command: %s", r.Command)
	const most = 5
	for _, line := range r.Widens[:min(len(r.Widens), most)] {
		add(line, "  it allows: %s", line)
	}
	if more := len(r.Widens) - most; more > 0 {
		add(r.Command, "  and %d more: scopefs allow prints them", more)
	}
	_, err := io.WriteString(w, text.String())
	return err
}
