package scoped

import (
	"fmt"
	"strconv"
	"strings"
)

// Code is the kind of an [Error]. The values are those of tools.Code.
type Code string

// The codes.
const (
	Invalid  Code = "invalid"   // the text is not what the protocol says
	Denied   Code = "denied"    // the call names a scope that it may not have
	TooLarge Code = "too_large" // a bound is exceeded
)

// Error is why a call gets no context.
type Error struct {
	Code    Code
	Message string
	Path    string // JSON pointer (RFC 6901) into the text that was read
}

func (e *Error) Error() string {
	if e.Path == "" {
		return string(e.Code) + ": " + e.Message
	}
	return string(e.Code) + ": " + e.Message + ": " + e.Path
}

func errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// in returns e with its path below a member or an element.
func (e *Error) in(part string) *Error {
	e.Path = "/" + pointer.Replace(part) + e.Path
	return e
}

func (e *Error) at(i int) *Error { return e.in(strconv.Itoa(i)) }

// pointer escapes a part of a JSON pointer (RFC 6901, section 3).
var pointer = strings.NewReplacer("~", "~0", "/", "~1")
