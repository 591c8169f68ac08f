package session

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/internal/proc"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file/worker"
)

// callID is the form of a call's id, which no name of an idle thread has.
var callID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z2-7]{13}$`) })

// origin is where a file operation comes from.
type origin struct {
	session string // the sandbox, in the log
	parent  string // the client that the sandbox belongs to
	call    string // "": unknown
	program string // the process's name; "" for a file tool
	byTool  bool   // the process is that of a file tool
	serves  bool   // the process serves one call of a file tool after another
}

// originOf returns the origin of an operation of a process, which the kernel names by a
// thread id.
func (a *Agent) originOf(pid int) origin {
	a.mu.Lock()
	sessions := maps.Clone(a.sessions)
	a.mu.Unlock()
	for s, box := range sessions {
		tag, own, ours := s.TagOf(pid)
		if !ours {
			continue
		}
		from := origin{session: box.Name, parent: box.parent, program: proc.Name(pid), serves: tag == worker.Arg}
		switch {
		case tag != worker.Arg:
			from.call = tag
		case own && callID().MatchString(from.program): // our own program: other processes of the sandbox choose their names
			from.call, from.program, from.byTool = from.program, "", true
		}
		return from
	}
	return origin{program: proc.Name(pid)}
}

// Actor returns the session and the call that a process works for: see view.Agent.
func (a *Agent) Actor(pid int) history.Actor {
	from := a.originOf(pid)
	label := history.Label{Session: from.session, Parent: from.parent, Call: from.call}
	return history.Actor{Label: label, Program: from.program, Lasting: !from.serves}
}

// once holds the violations of file tools' calls that are in the log. A refused tool looks
// up each name of the path to find the one for its error. Those lookups are no further
// violations.
type once map[violation]bool

type violation struct{ call, path string }

// maxOnce bounds once. A violation that is forgotten is recorded again.
const maxOnce = 1 << 10

func (o once) has(e audit.Event) bool {
	return e.Verdict == audit.Violation && o[violation{e.Call, e.Path}]
}

func (o *once) add(e audit.Event) {
	if e.Verdict != audit.Violation {
		return
	}
	if *o == nil || len(*o) == maxOnce {
		*o = once{}
	}
	(*o)[violation{e.Call, e.Path}] = true
}

// refusals holds what a view has refused to the file tools' calls that run. The record of
// a call's end then says why the call failed, not that it was allowed.
type refusals struct {
	mu    sync.Mutex
	calls map[string][]audit.Event
}

const (
	maxRefusals = 1 << 10 // calls: one that is forgotten has an error without its rule, and that of a rename the new name
	maxRefused  = 8       // refusals of a call, beside that of a rename
)

// renamed reports whether a view has refused the old name of a call's rename(2). The kernel returns one errno for both names.
func (r *refusals) renamed(call string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.calls[call], ofOldName)
}

func ofOldName(e audit.Event) bool { return e.Op == scope.OpRenameFrom.String() }

// add keeps a refusal of a file tool's call.
func (r *refusals) add(e audit.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil || len(r.calls) == maxRefusals {
		r.calls = map[string][]audit.Event{}
	}
	if list := r.calls[e.Call]; len(list) < maxRefused || ofOldName(e) && !slices.ContainsFunc(list, ofOldName) {
		r.calls[e.Call] = append(list, e)
	}
}

// explain forgets the refusals of a call that has ended. To the event of a call that has
// failed it adds the rule of the refusal, if that is about the path of the call: a link
// that leads outside, or a path that the call names or that is above it.
func (r *refusals) explain(e *audit.Event) {
	if e.Event != audit.KindCall || e.Outcome == audit.OutcomeBegin {
		return
	}
	r.mu.Lock()
	list := r.calls[e.Call]
	delete(r.calls, e.Call)
	r.mu.Unlock()
	switch tools.Code(e.Outcome) {
	case tools.NotFound, tools.Denied, tools.OutsideScope:
	default:
		return
	}
	for _, refused := range list {
		about := refused.Verdict == audit.Violation || holds(refused.Path, e.Path) || holds(refused.Path, e.Target)
		unexplained := e.Verdict == audit.Allow || e.RuleKind == string(scope.KindNeed)
		if unexplained && about {
			e.Verdict, e.Rule, e.RuleKind = audit.Deny, refused.Rule, refused.RuleKind
		}
	}
}

// holds reports whether a path is another, or above it.
func holds(above, rel string) bool { return strings.HasPrefix(rel+"/", above+"/") }
