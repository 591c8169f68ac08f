package api

import (
	"encoding/json"

	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/approvals"
)

// Errors, which the small command has as well.
var (
	ErrUnknown  = client.ErrUnknown
	ErrNoDaemon = client.ErrNoDaemon
	ErrLeft     = client.ErrLeft
)

// Unknown is [client.Unknown].
func Unknown(id scope.ID, names []string, file string) error { return client.Unknown(id, names, file) }

// Error is an error that the daemon answers.

type (
	// Error is [client.Error].
	Error = client.Error
	// ErrorKind is [client.ErrorKind].
	ErrorKind = client.ErrorKind
	// NotLoadedError is [client.NotLoadedError].
	NotLoadedError = client.NotLoadedError
)

// The kinds of error.
const (
	UnknownAgent  = client.UnknownAgent
	NotLoaded     = client.NotLoaded
	Missing       = client.Missing
	Invalid       = client.Invalid
	NotFound      = client.NotFound
	NotExecutable = client.NotExecutable
	Closing       = client.Closing
	Conflict      = client.Conflict
	Other         = client.Other
)

// ApprovalOf returns the approval of an error; nil: it has none.
func ApprovalOf(e *Error) *approvals.Approval {
	var a *approvals.Approval
	_ = json.Unmarshal(e.Approval, &a) // an error that cannot be read says what its text says
	return a
}
