package agents

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
)

// DefinitionError tells where a definition is wrong and what to do about it.
type DefinitionError struct {
	File  string   // relative to the base directory, such as agents.d/a.md
	Line  int      // from 1, or 0 for the file as a whole
	Agent scope.ID // that is not loaded for it; "" when none is, as for an extension
	Err   error    // "what: remedy"
}

// Error returns one line, whatever the file and its name hold.
func (e *DefinitionError) Error() string {
	where := e.File
	if e.Line > 0 {
		where = fmt.Sprintf("%s:%d", where, e.Line)
	}
	return printable.Text(where + ": " + e.Err.Error())
}

func (e *DefinitionError) Unwrap() error { return e.Err }

// DefinitionErrors are all errors of a file, in the order of its lines.
type DefinitionErrors []*DefinitionError

// Error returns a line for each.
func (e DefinitionErrors) Error() string { return errors.Join(e.Unwrap()...).Error() }

// Unwrap returns them.
func (e DefinitionErrors) Unwrap() []error {
	all := make([]error, len(e))
	for i, err := range e {
		all[i] = err
	}
	return all
}

// maxErrors bounds what is said about one file.
const maxErrors = 50

// wrongAt returns a DefinitionError at the line of err, or else this one, or all
// of them when err holds several.
func wrongAt(file string, line int, agent scope.ID, err error) error {
	var all problems
	all.add(line, err)
	slices.SortStableFunc(all, func(a, b error) int { return cmp.Compare(a.(*lineError).line, b.(*lineError).line) })
	var errs DefinitionErrors
	for i, err := range all {
		at := err.(*lineError)
		if more := len(all) - i; i == maxErrors && more > 1 {
			at = &lineError{at.line, fmt.Errorf("%d more errors: correct those above", more)}
			return append(errs, &DefinitionError{File: file, Line: at.line, Agent: agent, Err: at.err})
		}
		errs = append(errs, &DefinitionError{File: file, Line: at.line, Agent: agent, Err: at.err})
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errs
}

// eachError returns what err holds, one by one.
func eachError(err error) []error {
	if all, ok := err.(DefinitionErrors); ok {
		return all.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// removed says of what nothing matches any more what comes of it.
func removed(wrong problems) problems {
	all := make(problems, len(wrong))
	for i, err := range wrong {
		at := err.(*lineError)
		all[i] = &lineError{at.line, fmt.Errorf("%w; it was there once, and grants nothing now", at.err)}
	}
	return all
}

// lineOf returns the line of the first entry under a key, or the file's first.
func lineOf(refs []ref, key string) int {
	for _, r := range refs {
		if r.key == key {
			return r.line
		}
	}
	return 1
}

func byLine(a, b error) int {
	x, _ := a.(*DefinitionError)
	y, _ := b.(*DefinitionError)
	if x == nil || y == nil {
		return 0
	}
	return cmp.Compare(x.Line, y.Line)
}
