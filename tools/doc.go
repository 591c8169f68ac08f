// Package tools is the set of an agent's tools and its one door, [Set.Call]:
// validate, decide, record the beginning, run, record the end. A [Tool] is made
// by packages below this one and can be run by nothing else.
//
// A program adds tools of its own with [New]. It names them in [scope.Host].Tools,
// so that definitions may, and says in [Hints] which of them change files.
package tools
