package fields

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
)

// LineError is an error at a line of the file.
type LineError = frontmatter.Error

// Problems are the errors of a file. Each is a *LineError.
type Problems []error

func (p Problems) Error() string { return errors.Join(p...).Error() }

func (p Problems) Unwrap() []error { return p }

// Add adds the errors in err, at the given line unless they have one. It drops
// text wrapped around an error that has a line.
func (p *Problems) Add(line int, err error) {
	if err == nil {
		return
	}
	if all := (Problems)(nil); errors.As(err, &all) {
		*p = append(*p, all...)
		return
	}
	one := &LineError{Line: line, Err: err}
	_ = errors.As(err, &one)
	*p = append(*p, one)
}

// Err returns nil if there are no problems.
func (p Problems) Err() error {
	switch len(p) {
	case 0:
		return nil
	case 1:
		return p[0]
	}
	return p
}

// AtLine adds a line to err, unless it has one.
func AtLine(line int, err error) error {
	if have := (*LineError)(nil); err == nil || errors.As(err, &have) {
		return err
	}
	return &LineError{Line: line, Err: err}
}

// FileError reports an error in a file of the operator and its remedy.
type FileError struct {
	File  string   // relative to the base directory, such as agents.d/a.md
	Line  int      // from 1; 0 means the whole file
	Agent scope.ID // the agent that does not load because of it; "" for none, as in an extension
	Err   error    // "what: remedy"
}

// Error returns one printable line.
func (e *FileError) Error() string {
	where := e.File
	if e.Line > 0 {
		where = fmt.Sprintf("%s:%d", where, e.Line)
	}
	return printable.Text(where + ": " + e.Err.Error())
}

func (e *FileError) Unwrap() error { return e.Err }

// AgentOf returns the agent of an error's file; "" for an error of no file, or of no agent. A file whose name is no id is of no
// agent: no decoder of an answer would take its name.
func AgentOf(err error) scope.ID {
	if file, ok := errors.AsType[*FileError](err); ok {
		id, _ := scope.ParseID(string(file.Agent))
		return id
	}
	return ""
}

// FileErrors are all errors of a file, ordered by line.
type FileErrors []*FileError

// Error returns one line for each error.
func (e FileErrors) Error() string { return errors.Join(e.Unwrap()...).Error() }

// Unwrap returns the errors.
func (e FileErrors) Unwrap() []error {
	all := make([]error, len(e))
	for i, err := range e {
		all[i] = err
	}
	return all
}

// MaxErrors limits the errors reported for one file.
const MaxErrors = 50

// ErrorAt returns a FileError at the line of err, or else at the given
// line. If err has several errors it returns FileErrors.
func ErrorAt(file string, line int, agent scope.ID, err error) error {
	var all Problems
	all.Add(line, err)
	slices.SortStableFunc(all, func(a, b error) int { return cmp.Compare(a.(*LineError).Line, b.(*LineError).Line) })
	var errs FileErrors
	for i, err := range all {
		at := err.(*LineError)
		if more := len(all) - i; i == MaxErrors && more > 1 {
			at = &LineError{Line: at.Line, Err: fmt.Errorf("%d more errors: correct those above", more)}
			return append(errs, &FileError{File: file, Line: at.Line, Agent: agent, Err: at.Err})
		}
		errs = append(errs, &FileError{File: file, Line: at.Line, Agent: agent, Err: at.Err})
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errs
}

// EachError returns the errors in err.
func EachError(err error) []error {
	if all, ok := err.(FileErrors); ok {
		return all.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// InFile returns the errors of a file with the file's name.
func InFile(name string, all []error) error {
	var named []error
	for _, err := range all {
		for _, err := range EachError(err) {
			if at, ok := errors.AsType[*FileError](err); ok {
				err = &FileError{File: name, Line: at.Line, Err: at.Err}
			}
			named = append(named, err)
		}
	}
	return errors.Join(named...)
}
