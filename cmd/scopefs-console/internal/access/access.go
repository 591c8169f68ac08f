// Package access has the visitor of a page, and the role that each page needs.
package access

import (
	"context"
	"net/http"

	"github.com/scopefs/scopefs/internal/devices"
)

// Route is a page, or what a form of a page does. The door serves it to visitors whose role covers Role: it is the only
// place that decides so.
type Route struct {
	Pattern string // of http.ServeMux, with a method
	Role    devices.Role
	Serve   http.HandlerFunc
}

// Visitor is who sends a request.
type Visitor struct {
	Device string // its name; "": the operator, by a link
	ID     string // of the device
	Role   devices.Role
}

// As returns the visitor's name for the log: see api.DecideRequest.
func (v Visitor) As() string {
	if v.Device == "" {
		return "console"
	}
	return "console, device " + v.Device
}

// LiveHeader marks requests that a page makes by itself. They do not keep a session alive.
const LiveHeader = "Scopefs-Live"

type key struct{}

// With returns a context of a request of a visitor.
func With(ctx context.Context, v Visitor) context.Context { return context.WithValue(ctx, key{}, v) }

// Of returns the visitor of a request's context. Without one it may do nothing.
func Of(ctx context.Context) Visitor {
	v, _ := ctx.Value(key{}).(Visitor)
	return v
}
