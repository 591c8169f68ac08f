package client

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/scopefs/scopefs/internal/nearest"
	"github.com/scopefs/scopefs/scope"
)

var (
	// ErrUnknown is the error of an agent that has no definition.
	ErrUnknown = errors.New("unknown agent")
	// ErrNoDaemon is the error of a run directory in which no daemon answers.
	ErrNoDaemon = errors.New("no daemon is running")
	// ErrLeft is the error of one where views wait for the next daemon.
	ErrLeft = fmt.Errorf("%w", ErrNoDaemon)
)

// NotLoadedError is the error of an agent whose definition does not load.
type NotLoadedError struct{ Err error }

func (e *NotLoadedError) Error() string { return e.Err.Error() }
func (e *NotLoadedError) Unwrap() error { return e.Err }

// Error is an error that the daemon answers.
type Error struct {
	Text   string    `json:"error"`
	Kind   ErrorKind `json:"kind"`
	Status int       `json:"status,omitempty"` // the exit status of a daemon that did not start

	// Outcome and Approval say what the request of a decision is now: see approvals.ConflictError.
	Outcome  string          `json:"outcome,omitempty"`
	Approval json.RawMessage `json:"approval,omitempty"`
}

func (e *Error) Error() string { return e.Text }

// ErrorKind is what a client distinguishes errors by.
type ErrorKind string

// The kinds of error.
const (
	UnknownAgent  ErrorKind = "unknown_agent"
	NotLoaded     ErrorKind = "not_loaded"     // the agent's definition does not load
	Missing       ErrorKind = "missing"        // a program or kernel feature that sandboxes need
	Invalid       ErrorKind = "invalid"        // a bad request, as bad usage is
	NotFound      ErrorKind = "not_found"      // the program of a run does not exist
	NotExecutable ErrorKind = "not_executable" // the program of a run exists and cannot be run
	Closing       ErrorKind = "closing"        // the daemon ends
	Conflict      ErrorKind = "conflict"       // what is decided about is not what was shown
	Other         ErrorKind = "other"
)

// Unknown returns an ErrUnknown for the id of no agent, with the name that is nearest to it, and the file to define it in.
func Unknown(id scope.ID, names []string, file string) error {
	if like := nearest.Of(string(id), names); like != "" && like != string(id) {
		return fmt.Errorf("%w %q: define it in %s, or did you mean %s", ErrUnknown, id, file, like)
	}
	return fmt.Errorf("%w %q: define it in %s", ErrUnknown, id, file)
}
