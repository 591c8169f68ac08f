package tools

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
)

// Begun is the record of a call's beginning, as the daemon that follows needs it to record the end. Its fields are for JSON.
type Begun struct {
	Call      string        `json:"call"`
	Tool      string        `json:"tool"`
	Arguments string        `json:"arguments"` // their hash
	Version   string        `json:"version"`   // of the rules that allowed the call
	Rule      string        `json:"rule,omitempty"`
	Kind      scope.Kind    `json:"kind,omitempty"` // of the rule
	Context   []audit.Scope `json:"context,omitempty"`
	At        time.Time     `json:"at"`
}

// Resumed is a call that an earlier daemon has begun, and whose work goes on.
type Resumed struct {
	Begun
	End      func()      // ends the work: the tool is not run, or has failed
	Recorded func() bool // reports whether the earlier daemon has recorded the call's end
}

var (
	// ErrLeft is the error of a call that is left to the next daemon. The client must get no answer.
	ErrLeft = errors.New("the call is left to the next daemon")
	// ErrLost is the error of Call.Resume: nothing is left of the call, or the client has resumed it already.
	ErrLost = errors.New("the call has ended with the daemon")
)

// begun returns the record of the call's beginning.
func (r *invocation) begun() Begun {
	var e audit.Event
	r.describe(&e)
	return Begun{Call: r.id, Tool: r.name, Arguments: hash(r.args.canonical), Version: r.version, Rule: r.allowed.Rule,
		Kind: r.allowed.Kind, Context: e.Context, At: time.Now()}
}

// resume continues with a call that an earlier daemon has begun. The call counts against no rate again. If the rules allow it no
// more, its work ends.
func (s *Set) resume(ctx context.Context, c Call, r *invocation) (Result, error) {
	var was *Resumed
	if s.gate.Resume != nil {
		was = s.gate.Resume(c.Resume)
	}
	if was == nil {
		return Result{}, ErrLost
	}
	r.id, r.version, r.allowed = was.Call, was.Version, scope.Decision{Rule: was.Rule, Kind: was.Kind}
	if err := s.find(ctx, r); err != nil { // which has recorded it
		was.End()
		return Result{}, err
	}
	return s.proceed(ctx, c, r, was.Begun, was, s.reselect(r, was))
}

// reselect selects the context of a resumed call again. The call sees none if the client has sent another one.
func (s *Set) reselect(r *invocation, was *Resumed) error {
	if r.name != was.Tool || hash(r.args.canonical) != was.Arguments {
		return Errorf(Invalid, "the call has other arguments than an earlier daemon has begun it with")
	}
	rules := s.rules()
	if _, err := r.choose(rules); err != nil {
		if rules.Version() != was.Version {
			return err
		}
		r.context = scoped.Scoped{}
	}
	if !slices.Equal(r.begun().Context, was.Context) {
		r.context = scoped.Scoped{}
	}
	return nil
}
