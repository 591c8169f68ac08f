package driver

import (
	"context"
	"errors"
	"net"
	"slices"
	"syscall"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/egress"
)

// fault is an error on the wire: that of a tool, or another one with what callers tell apart.
type fault struct {
	Code    tools.Code    `json:"code,omitempty"` // "": the error of no tool
	Message string        `json:"message,omitempty"`
	Hint    string        `json:"hint,omitempty"`
	Cause   *fault        `json:"cause,omitempty"`
	Errno   syscall.Errno `json:"errno,omitempty"`
	Address bool          `json:"address,omitempty"` // [egress.ErrAddress]
	Late    bool          `json:"late,omitempty"`    // a deadline
	DNS     bool          `json:"dns,omitempty"`     // [net.DNSError]
	Network bool          `json:"network,omitempty"` // [net.OpError]
}

// codes are those that a driver gives.
var codes = []tools.Code{
	tools.NotFound, tools.Conflict, tools.RateLimited, tools.TooLarge, tools.Unavailable, tools.Invalid, tools.Internal,
}

func faultOf(err error) *fault {
	if e, ok := errors.AsType[*tools.Error](err); ok {
		f := &fault{Code: e.Code, Message: tools.Clip(e.Message, maxText), Hint: tools.Clip(e.Hint, maxText)}
		if cause := e.Unwrap(); cause != nil {
			f.Cause = plain(cause)
		}
		return f
	}
	return plain(err)
}

func plain(err error) *fault {
	f := &fault{Message: tools.Clip(err.Error(), maxCause), Address: errors.Is(err, egress.ErrAddress)}
	f.Errno, _ = errors.AsType[syscall.Errno](err)
	_, f.DNS = errors.AsType[*net.DNSError](err)
	_, f.Network = errors.AsType[*net.OpError](err)
	timeout, ok := errors.AsType[net.Error](err)
	f.Late = errors.Is(err, context.DeadlineExceeded) || ok && timeout.Timeout()
	return f
}

// error returns the error of a fault. What the other end may not say is unavailable.
func (f *fault) error() error {
	if f.Code == "" {
		return &Remote{*f}
	}
	e := tools.Errorf(f.Code, "%s", tools.Clip(tools.Clean(f.Message), maxText))
	e.Hint = tools.Clip(tools.Clean(f.Hint), maxText)
	if !slices.Contains(codes, f.Code) {
		e = tools.Errorf(tools.Unavailable, "the store failed")
	}
	if f.Cause != nil {
		cause := *f.Cause
		cause.Code = ""
		return e.Because(cause.error())
	}
	return e
}

// Remote is an error of the other end, that of no tool.
type Remote struct{ fault fault }

func (e *Remote) Error() string { return tools.Clip(e.fault.Message, maxCause) }

// Is reports whether the error of the other end was a target that callers tell apart.
func (e *Remote) Is(target error) bool {
	switch target {
	case egress.ErrAddress:
		return e.fault.Address
	case context.DeadlineExceeded:
		return e.fault.Late
	}
	return e.fault.Errno != 0 && target == e.fault.Errno
}

// As sets a target to an error of package net of the same kind.
func (e *Remote) As(target any) bool {
	switch out := target.(type) {
	case **net.DNSError:
		if e.fault.DNS {
			*out = &net.DNSError{Err: e.Error()}
			return true
		}
	case **net.OpError:
		if e.fault.Network {
			*out = &net.OpError{Op: "dial", Net: "tcp", Err: e}
			return true
		}
	}
	return false
}

// Timeout reports whether the other end waited in vain.
func (e *Remote) Timeout() bool { return e.fault.Late }

// Temporary returns false.
func (e *Remote) Temporary() bool { return false }
