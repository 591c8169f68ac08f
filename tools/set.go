package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/trace"
	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/limit"
)

// Gate holds the rules, bounds and log that [Set.Call] applies to an agent's calls.
type Gate struct {
	Agent   scope.ID
	Session string
	Chain   string        // agents from the first caller to this one: a>b>c; "" outside of a task
	Trace   trace.Context // the call of another agent that the session works for; the zero value: none
	Rules   func() Rules  // returns the current rules; nil, and a nil result, allow nothing

	// Within returns the agents whose allow-lists bound a call: Agent, and the callers
	// whose rights limit it. Nil means Agent alone, which the operator has named.
	Within func() []scope.Principal

	// Find is called for an unknown tool mcp:SERVER:TOOL before the call is refused. It
	// may Extend the set. Its error says why the tool is missing. Nil if the set's
	// servers cannot change.
	Find func(ctx context.Context, name string) error

	// Effects begins to watch what a call of a tool with Hints.Changes does in the view. Nil: nothing watches.
	Effects func(Env) Watch

	// Record writes an event to the log. No call runs without a record.
	Record func(context.Context, audit.Event) error

	Queue     *limit.Queue   // of all agents; nil: no call waits for a turn
	Examiners *limit.Slots   // of all agents, see [MaxExaminers]; nil: no bound
	Rates     *Rates         // of the agent, in all its sessions
	Approvals *approvals.Set // nil: no operator can approve, and calls under ask are denied
	Nobody    string         // if nobody can approve: the hint of a call that needs approval

	// Wait is how long a call waits for the operator's approval; then, and if it is 0,
	// the call ends with [ApprovalRequired].
	Wait time.Duration

	// Show makes the context of a call visible to the processes that the call starts,
	// until hide is called. It is called for calls with a context only. Nil: only the
	// tool has the context.
	Show func(call string, context scoped.Scoped) (hide func(), err error)

	// Object returns the object at a path of a call, with the hash of a directory's
	// content if wanted. An approval is bound to this object.
	Object func(ctx context.Context, tool, path string, tree bool) (approvals.Object, error)

	// Resume returns a call of this session that an earlier daemon has begun, once; nil: there is none. Nil: there is never one.
	Resume func(call string) *Resumed

	// Preview returns the change that a call under ask would make to its file. It
	// returns nothing for tools that change no content. Nil: no previews.
	Preview func(ctx context.Context, tool string, args json.RawMessage) (approvals.Changes, error)
}

// Set holds the tools of one agent's session. Its methods are safe for concurrent use.
type Set struct {
	gate     Gate
	natives  map[string]*Tool
	aliases  map[string]*Tool
	covered  map[string]bool
	more     atomic.Pointer[map[string]*Tool] // see Extend
	declared atomic.Pointer[map[string]*Tool] // see Declare
	running  *limit.Slots                     // of calls in flight
}

// maxRunning bounds the calls of a session that run at the same time.
const maxRunning = 32

// NewSet returns a set. Two tools with one name are an error, except that an alias may
// have the name of a tool that it covers.
func NewSet(gate Gate, all ...Tool) (*Set, error) {
	s := &Set{gate: gate, natives: map[string]*Tool{}, aliases: map[string]*Tool{}, covered: map[string]bool{},
		running: limit.NewSlots(maxRunning)}
	for _, t := range all {
		into := s.natives
		if t.face != nil {
			into = s.aliases
			for _, name := range t.face.covers {
				s.covered[name] = true
			}
		}
		if t.Name == "" || into[t.Name] != nil {
			return nil, fmt.Errorf("tool %q is there twice, or has no name", t.Name)
		}
		into[t.Name] = &t
	}
	for name, t := range s.aliases {
		for _, covered := range t.face.covers {
			if s.natives[covered] == nil {
				return nil, fmt.Errorf("alias %q: there is no tool %q", name, covered)
			}
		}
		if s.natives[name] != nil && !s.covered[name] {
			return nil, fmt.Errorf("alias %q is also a tool", name)
		}
	}
	return s, nil
}

// serverPrefix begins the names of tools of MCP servers.
const serverPrefix = "mcp:"

// Extend replaces the tools of MCP servers, mcp:SERVER:TOOL.
func (s *Set) Extend(all []Tool) error {
	more := map[string]*Tool{}
	for _, t := range all {
		if !strings.HasPrefix(t.Name, serverPrefix) || more[t.Name] != nil || t.face != nil {
			return fmt.Errorf("tool %q is no server's, or there twice", t.Name)
		}
		more[t.Name] = &t
	}
	s.more.Store(&more)
	return nil
}

// Declare replaces the tools that the operator has declared. It returns an error, and
// changes nothing, if two tools have one name.
func (s *Set) Declare(all []Tool) error {
	declared := map[string]*Tool{}
	for _, t := range all {
		if t.terms == nil || declared[t.Name] != nil || s.natives[t.Name] != nil || s.aliases[t.Name] != nil {
			return fmt.Errorf("tool %q is there twice, or is not declared", t.Name)
		}
		declared[t.Name] = &t
	}
	s.declared.Store(&declared)
	return nil
}

// native returns the tool that rules name so, or nil.
func (s *Set) native(name string) *Tool {
	if t := s.natives[name]; t != nil {
		return t.current()
	}
	for _, more := range s.comeAndGo() {
		if t := more[name]; t != nil {
			return t
		}
	}
	return nil
}

// comeAndGo returns the tools of servers, and those that are declared.
func (s *Set) comeAndGo() (all []map[string]*Tool) {
	for _, p := range []*atomic.Pointer[map[string]*Tool]{&s.more, &s.declared} {
		if m := p.Load(); m != nil {
			all = append(all, *m)
		}
	}
	return all
}

// List returns the tools that the current rules allow or ask for, sorted by name, without those that are [Tool].Idle.
func (s *Set) List() []Tool {
	rules := s.rules()
	var list []Tool
	for _, t := range s.aliases {
		if s.mayAny(rules, t) {
			list = append(list, *t)
		}
	}
	all := maps.Clone(s.natives)
	for _, more := range s.comeAndGo() {
		maps.Copy(all, more)
	}
	for name, t := range all {
		if t = t.current(); t.late == nil && !s.covered[name] && s.may(rules, name) && (t.Idle == nil || !t.Idle()) {
			list = append(list, *t)
		}
	}
	for i := range list {
		list[i].offer(rules)
		list[i].choose()
	}
	slices.SortFunc(list, func(a, b Tool) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// maxChoices bounds the values of an argument in a schema.
const maxChoices = 100

// choose puts the values of Choices into the schema of the arguments.
func (t *Tool) choose() {
	if t.Choices == nil || t.Input == nil {
		return
	}
	offered := *t.Input
	offered.Properties = maps.Clone(t.Input.Properties)
	for name, values := range t.Choices() {
		if of := offered.Properties[name]; of != nil && len(values) > 0 && len(values) <= maxChoices {
			one := *of
			for _, value := range values {
				one.Enum = append(one.Enum, value)
			}
			offered.Properties[name] = &one
		}
	}
	t.Input = &offered
}

// mayAny reports whether the agent may call one of the tools that an alias covers.
func (s *Set) mayAny(rules Rules, alias *Tool) bool {
	return slices.ContainsFunc(alias.face.covers, func(name string) bool { return s.may(rules, name) })
}

// may reports whether List returns a tool.
func (s *Set) may(rules Rules, name string) bool {
	d := s.judge(rules, name)
	return d.Allow || d.Ask
}

// Allows reports whether the current rules allow a native tool without an approval. Each call is authorised on its own.
func (s *Set) Allows(name string) bool {
	return s.native(name) != nil && s.judge(s.rules(), name).Allow
}

// judge decides about a tool by the rules and the tool's hints.
func (s *Set) judge(rules Rules, name string) scope.Decision {
	t := s.native(name)
	return rules.Call(name, t != nil && t.Hints.Writes)
}
