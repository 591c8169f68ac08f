package message

import (
	"fmt"

	"github.com/scopefs/scopefs/internal/printable"
)

// A Code is a code of package tools.
type Code string

// The codes of errors that a worker replies with.
const (
	OutsideScope Code = "outside_scope"
	Denied       Code = "denied"
	NotFound     Code = "not_found"
	Conflict     Code = "conflict"
	TooLarge     Code = "too_large"
	Unavailable  Code = "unavailable"
	Invalid      Code = "invalid"
	Internal     Code = "internal"
)

// Error is the error of an operation. Its fields are those of tools.Error.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Path    string `json:"path,omitempty"`
	Hint    string `json:"hint,omitempty"`

	cause error
}

func (e *Error) Error() string {
	text := string(e.Code) + ": " + e.Message
	if e.Path != "" {
		text += ": " + printable.Quote(e.Path)
	}
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	return text
}

func (e *Error) Unwrap() error { return e.cause }

// Because keeps the cause, and returns e.
func (e *Error) Because(cause error) *Error {
	e.cause = cause
	return e
}

// Errorf returns an Error of a code.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Problem returns an Error about a path.
func Problem(code Code, path, message, hint string) *Error {
	return &Error{Code: code, Message: message, Path: path, Hint: hint}
}

// Outside returns the error of a path outside of the view.
func Outside(asked string, why Intent) *Error {
	if why == Writing {
		return Problem(OutsideScope, asked, "outside of the view", "only what is below the view's root can be changed")
	}
	return Problem(NotFound, asked, "no such file or directory", "")
}

// Intent is the purpose of a path. It decides which errors the agent gets.
type Intent bool

// The intents.
const (
	Reading Intent = false
	Writing Intent = true
)
