package tools

import "github.com/scopefs/scopefs/scope"

// Rules decide about the calls of one agent. They may be [ContextRules], too. Grants
// of package scope/agents are both; a program that has no definition files brings its
// own. A Set asks [Gate.Rules] for the rules at each call, so that a change holds at
// once. Rules themselves are immutable and may be used by any number of goroutines.
type Rules interface {
	// Call decides about calls of a tool. writes reports whether the tool changes
	// files ([Hints]). A tool for which the decision neither allows nor asks is not
	// listed, and the agent gets the error of a tool that does not exist.
	Call(tool string, writes bool) scope.Decision

	// RatesOf returns the limits that count calls of the tool.
	RatesOf(tool string) []scope.Rate

	// FiltersOf returns what refuses calls of the tool by their arguments. The
	// caller does not change it.
	FiltersOf(tool string) []scope.Filter

	// Version returns a text that differs for any two rules that decide differently.
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

// rules returns the rules that hold now. Without Gate.Rules there are none.
func (s *Set) rules() Rules {
	if s.gate.Rules == nil {
		return noRules{}
	}
	if r := s.gate.Rules(); r != nil {
		return r
	}
	return noRules{}
}
