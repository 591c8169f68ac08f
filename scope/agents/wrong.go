package agents

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
)

// DefinitionError reports an error in a definition and its remedy.
type DefinitionError struct {
	File  string   // relative to the base directory, such as agents.d/a.md
	Line  int      // from 1; 0 means the whole file
	Agent scope.ID // the agent that does not load because of it; "" for none, as in an extension
	Err   error    // "what: remedy"
}

// Error returns one printable line.
func (e *DefinitionError) Error() string {
	where := e.File
	if e.Line > 0 {
		where = fmt.Sprintf("%s:%d", where, e.Line)
	}
	return printable.Text(where + ": " + e.Err.Error())
}

func (e *DefinitionError) Unwrap() error { return e.Err }

// DefinitionErrors are all errors of a file, ordered by line.
type DefinitionErrors []*DefinitionError

// Error returns one line for each error.
func (e DefinitionErrors) Error() string { return errors.Join(e.Unwrap()...).Error() }

// Unwrap returns the errors.
func (e DefinitionErrors) Unwrap() []error {
	all := make([]error, len(e))
	for i, err := range e {
		all[i] = err
	}
	return all
}

// maxErrors limits the errors reported for one file.
const maxErrors = 50

// wrongAt returns a DefinitionError at the line of err, or else at the given
// line. If err has several errors it returns DefinitionErrors.
func wrongAt(file string, line int, agent scope.ID, err error) error {
	var all problems
	all.add(line, err)
	slices.SortStableFunc(all, func(a, b error) int { return cmp.Compare(a.(*lineError).Line, b.(*lineError).Line) })
	var errs DefinitionErrors
	for i, err := range all {
		at := err.(*lineError)
		if more := len(all) - i; i == maxErrors && more > 1 {
			at = &lineError{Line: at.Line, Err: fmt.Errorf("%d more errors: correct those above", more)}
			return append(errs, &DefinitionError{File: file, Line: at.Line, Agent: agent, Err: at.Err})
		}
		errs = append(errs, &DefinitionError{File: file, Line: at.Line, Agent: agent, Err: at.Err})
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errs
}

// eachError returns the errors in err.
func eachError(err error) []error {
	if all, ok := err.(DefinitionErrors); ok {
		return all.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// removed adds to each error that the name existed before.
func removed(wrong problems) problems {
	all := make(problems, len(wrong))
	for i, err := range wrong {
		at := err.(*lineError)
		all[i] = &lineError{Line: at.Line, Err: fmt.Errorf("%w; it was there once, and grants nothing now", at.Err)}
	}
	return all
}

// lineOf returns the line of the first entry under a key, or 1.
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
