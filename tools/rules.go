package tools

import "github.com/scopefs/scopefs/scope"

// Rules decide about the calls of one agent. They may implement [ContextRules], too.
// Grants of package scope/agents implement both; a program without definition files
// brings its own. A Set calls [Gate.Rules] for each call, so that a change holds at
// once. Rules are immutable and safe for concurrent use.
type Rules interface {
	// Call decides about calls of a tool. writes reports whether the tool changes
	// files ([Hints]). A tool for which the decision neither allows nor asks is not
	// listed, and the agent gets the error of a tool that does not exist.
	Call(tool string, writes bool) scope.Decision

	// RatesOf returns the limits that count calls of a tool.
	RatesOf(tool string) []scope.Rate

	// FiltersOf returns the argument filters of a tool. The caller must not change them.
	FiltersOf(tool string) []scope.Filter

	// Version returns a text that differs between any two Rules that decide differently.
	// An approval holds for one version.
	Version() string
}

// noRules allow nothing.
type noRules struct{}

func (noRules) Call(string, bool) scope.Decision {
	return scope.Decision{Kind: scope.KindNothing, Rule: "no policy"}
}
func (noRules) RatesOf(string) []scope.Rate     { return nil }
func (noRules) FiltersOf(string) []scope.Filter { return nil }
func (noRules) Version() string                 { return "" }

// rules returns the current rules. Without Gate.Rules they allow nothing.
func (s *Set) rules() Rules {
	if s.gate.Rules == nil {
		return noRules{}
	}
	if r := s.gate.Rules(); r != nil {
		return r
	}
	return noRules{}
}
