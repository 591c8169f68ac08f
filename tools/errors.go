package tools

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/effect"
)

// A Code says what kind of error an agent gets.
type Code string

// The codes. To read what is outside the scope is [NotFound], as if there were
// nothing; to write there is [OutsideScope], whatever is there. [Unavailable] is
// what may work when it is called again.
const (
	OutsideScope     Code = "outside_scope"
	Denied           Code = "denied"
	ApprovalRequired Code = "approval_required"
	NotFound         Code = "not_found"
	Conflict         Code = "conflict"
	RateLimited      Code = "rate_limited"
	TooLarge         Code = "too_large"
	Unavailable      Code = "unavailable"
	Invalid          Code = "invalid"
	Internal         Code = "internal"
)

// Error is the answer to an agent in place of a result. It names nothing of the host.
type Error struct {
	Code       Code   `json:"code"`
	Message    string `json:"message"`
	Path       string `json:"path,omitempty"` // relative to the view; of a context or an envelope a JSON pointer, which begins with a slash
	Hint       string `json:"hint,omitempty"`
	ApprovalID string `json:"approval_id,omitempty"`

	Effects *effect.Effects `json:"effects,omitempty"` // what the call has changed all the same

	by      scope.Decision  // for the log: what refused the call
	verdict audit.Verdict   // of the tool itself, by that decision; "" is none
	cause   error           // for the log: what an agent must not see
	outcome string          // for the log, with the approval; "": the code says all
	changed <-chan struct{} // of ApprovalRequired: closed when to decide again may answer otherwise
}

func (e *Error) Error() string {
	text := string(e.Code) + ": " + e.Message
	if e.Path != "" {
		text += ": " + Quote(e.Path)
	}
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	return text
}

func (e *Error) Unwrap() error { return e.cause }

// Cause returns the cause of an error that an agent gets, for the operator, or err if it has none.
func Cause(err error) error {
	if e, ok := errors.AsType[*Error](err); ok && e.cause != nil {
		return e.cause
	}
	return err
}

// Asked is the error of a call that ended with a question for the user: with
// the answer it is to be made again. Only a [Call.Ask] makes one.
type Asked struct{ Question Question }

func (e *Asked) Error() string { return "the user is asked: " + e.Question.Text }

// Errorf returns an Error of a code.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Because keeps a cause for the log, and returns e.
func (e *Error) Because(cause error) *Error {
	e.cause = cause
	return e
}

// Suggest sets the hint, which says what the agent can do, and returns e.
func (e *Error) Suggest(hint string) *Error {
	e.Hint = hint
	return e
}

// Refused is Errorf for what a tool does not do because the agent may not: it is
// recorded as a denial, with the decision's rule. The error of a tool with the code
// Denied, OutsideScope, ApprovalRequired or RateLimited is recorded as a denial in any case.
func Refused(d scope.Decision, code Code, format string, args ...any) *Error {
	e := Errorf(code, format, args...)
	e.by, e.verdict = d, audit.Deny
	return e
}

// Violates records the call as an attempt to leave the scope, by a rule, and
// returns e. To the agent it changes nothing.
func (e *Error) Violates(rule string) *Error {
	e.by, e.verdict = scope.Decision{Kind: scope.KindResolution, Rule: rule}, audit.Violation
	return e
}

// decided returns the decision that an error with one of the codes of a refusal is
// recorded with. ok is false for an error that refuses nothing.
func (e *Error) decided() (by scope.Decision, verdict audit.Verdict, ok bool) {
	by, verdict = e.by, cmp.Or(e.verdict, audit.Deny)
	switch {
	case e.verdict != "":
	case e.Code == OutsideScope:
		// A link led outside: only its walk showed that, and the view has recorded it.
		by = scope.Decision{Kind: scope.KindResolution, Rule: rulePath}
	case e.Code == RateLimited && by.Rule == "":
		by = scope.Decision{Kind: scope.KindLimit, Rule: e.Message}
	case (e.Code == Denied || e.Code == ApprovalRequired) && by.Rule == "":
		by = scope.Decision{Kind: scope.KindNeed, Rule: e.Message}
	case e.Code != Denied && e.Code != RateLimited && e.Code != ApprovalRequired:
		return scope.Decision{}, "", false
	}
	return by, verdict, true
}

// notRun is the error of a call that did not run because the daemon cannot keep what it must keep of it.
func notRun(cannot string, cause error) *Error {
	return &Error{Code: Unavailable, Message: cannot + ", so the call did not run",
		Hint: "try again; the operator's log has the cause", cause: cause}
}

// asError returns err as what an agent may see: of what is no *Error, only that
// something went wrong.
func asError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Code: Internal, Message: "the tool failed", Hint: "try again; the operator's log has the cause", cause: err}
}
