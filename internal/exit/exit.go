// Package exit has the exit statuses of scopefs, and errors that carry one.
package exit

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
)

// The exit statuses.
const (
	Failed = 1
	Usage  = 2
	Host   = 3
	// Unproved is the status of audit verify and check-proof for lines that nothing from elsewhere vouches for.
	Unproved = 4
	// Config is Usage of a daemon that a service manager may restart: sysexits.h, systemd.exec(5).
	// A Go program ends with 2 after a panic, SIGABRT and SIGSEGV, and is to be restarted then.
	Config = 78
)

// Error is an error with an exit status.
type Error struct {
	Status int
	Err    error // nil: it was printed already
}

func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit status %d", e.Status)
	}
	return e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// With returns an error with a status.
func With(status int, err error) error { return &Error{Status: status, Err: err} }

// Usagef returns an error with the status of bad usage.
func Usagef(format string, args ...any) error { return With(Usage, fmt.Errorf(format, args...)) }

// Args wraps a check of a command's arguments so that its error has the status of bad usage.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, words []string) error {
		err := check(c, words)
		switch {
		case err == nil:
			return nil
		case len(words) == 0 || check(c, append(slices.Clip(words), "")) == nil:
			err = fmt.Errorf("%s: an argument is missing", c.Name())
		case !c.HasSubCommands():
			err = fmt.Errorf("%s: %q is an argument too many", c.Name(), words[len(words)-1])
		}
		return Usagef("%w (usage: %s)", err, c.UseLine())
	}
}
