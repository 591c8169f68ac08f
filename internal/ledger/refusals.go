package ledger

import (
	"slices"
	"strings"
	"sync"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
)

// Violations holds the violations of file tools' calls that are in the log. A refused tool looks
// up each name of the path to find the one for its error. Those lookups are no further
// violations. The zero value is empty.
type Violations struct {
	mu  sync.Mutex // nothing waits under it
	all map[violation]bool
}

type violation struct{ call, path string }

// maxViolations bounds Violations. A violation that is forgotten is recorded again.
const maxViolations = 1 << 10

// Has reports whether an event is a violation that is in the log.
func (v *Violations) Has(e audit.Event) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return e.Verdict == audit.Violation && v.all[violation{e.Call, e.Path}]
}

// Add adds an event that was recorded, if it is a violation.
func (v *Violations) Add(e audit.Event) {
	if e.Verdict != audit.Violation {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.all == nil || len(v.all) == maxViolations {
		v.all = map[violation]bool{}
	}
	v.all[violation{e.Call, e.Path}] = true
}

// Refusals holds what a view has refused to the file tools' calls that run. The record of
// a call's end then says why the call failed, not that it was allowed.
type Refusals struct {
	mu    sync.Mutex
	calls map[string][]audit.Event
}

const (
	maxRefusals = 1 << 10 // calls: one that is forgotten has an error without its rule, and that of a rename the new name
	maxRefused  = 8       // refusals of a call, beside that of a rename
)

// Renamed reports whether a view has refused the old name of a call's rename(2). The kernel returns one errno for both names.
func (r *Refusals) Renamed(call string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.calls[call], ofOldName)
}

func ofOldName(e audit.Event) bool { return e.Op == scope.OpRenameFrom.String() }

// Of returns the last denial of a call by a view that is about a path: of the path, or of a directory above it.
func (r *Refusals) Of(call, rel string) (denied audit.Event, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range slices.Backward(r.calls[call]) {
		if e.Verdict == audit.Deny && holds(e.Path, rel) {
			return e, true
		}
	}
	return audit.Event{}, false
}

// Add keeps a refusal of a file tool's call.
func (r *Refusals) Add(e audit.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil || len(r.calls) == maxRefusals {
		r.calls = map[string][]audit.Event{}
	}
	if list := r.calls[e.Call]; len(list) < maxRefused || ofOldName(e) && !slices.ContainsFunc(list, ofOldName) {
		r.calls[e.Call] = append(list, e)
	}
}

// Explain forgets the refusals of a call that has ended. To the event of a call that has
// failed it adds the rule of the refusal, if that is about the path of the call: a link
// that leads outside, or a path that the call names or that is above it.
func (r *Refusals) Explain(e *audit.Event) {
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
