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
	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools/limit"
)

// Gate is what stands before an agent's tools.
type Gate struct {
	Agent   scope.ID
	Session string
	Chain   string       // of agents, from the first that delegated to this one: a>b>c; "": nobody did
	Rules   func() Rules // that hold now; nil, and a nil result, allow nothing

	// Within returns the agents whose allow-lists bound a call: Agent, and the
	// callers that it may do no more than. Nil: Agent alone.
	Within func() []scope.ID

	// Find is called for a tool mcp:SERVER:TOOL that is not there, before the call
	// is refused: it may Extend the set. Its error is why there is none; nil where
	// that cannot change.
	Find func(ctx context.Context, name string) error

	// Record writes an event to the log. Nothing runs that it did not take.
	Record func(context.Context, audit.Event) error

	Queue     *limit.Queue // of all agents; nil: no call waits for a turn
	Examiners *limit.Slots // of all agents, see [MaxExaminers]; nil: no bound
	Rates     *Rates       // of the agent, in all its sessions
	Approvals *Approvals   // nil: nobody is there who could approve
	Nobody    string       // without Approvals: the hint of a call that needs one

	// Wait is how long a call waits for the operator's approval; then, and if it is 0,
	// the call ends with [ApprovalRequired].
	Wait time.Duration

	// Show makes the context of a call visible to what the call starts, until hide.
	// It is called only for calls that have one. Nil: the tool alone has it.
	Show func(call string, context scoped.Scoped) (hide func(), err error)

	// Object returns what stands at a path of a call of a tool, with the content of a
	// directory if asked. An approval holds for it alone.
	Object func(ctx context.Context, tool, path string, tree bool) (Object, error)

	// Preview returns what a call that needs an approval would do to the file that it
	// is about; nothing of tools that change no content. Nil: nothing of any.
	Preview func(ctx context.Context, tool string, args json.RawMessage) (Changes, error)
}

// Set is the tools of one agent's session.
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

// NewSet returns a set. A name that is there twice is an error; an alias may
// have the name of a tool that it covers.
func NewSet(gate Gate, all ...Tool) (*Set, error) {
	s := &Set{gate: gate, natives: map[string]*Tool{}, aliases: map[string]*Tool{}, covered: map[string]bool{}, running: limit.NewSlots(maxRunning)}
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

// Extend replaces the tools of MCP servers, mcp:SERVER:TOOL, which come and go.
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

// Declare replaces the tools that the operator has declared. It changes nothing after
// an error: a name that another tool has, or that is there twice.
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

// native returns the tool that rules know by this name.
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

// List returns the tools that may be called now, by name.
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
		if t = t.current(); t.late == nil && !s.covered[name] && s.may(rules, name) {
			list = append(list, *t)
		}
	}
	for i := range list {
		list[i].offer(rules)
	}
	slices.SortFunc(list, func(a, b Tool) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// mayAny reports whether one of the tools may be called that an alias covers.
func (s *Set) mayAny(rules Rules, alias *Tool) bool {
	return slices.ContainsFunc(alias.face.covers, func(name string) bool { return s.may(rules, name) })
}

// may reports whether a tool is to be listed.
func (s *Set) may(rules Rules, name string) bool {
	d := s.judge(rules, name)
	return d.Allow || d.Ask
}

// judge decides about a tool by the rules and by what the tool says of itself.
func (s *Set) judge(rules Rules, name string) scope.Decision {
	t := s.native(name)
	return rules.Call(name, t != nil && t.Hints.Writes)
}
