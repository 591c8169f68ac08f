package session

import (
	"errors"

	"github.com/scopefs/scopefs/tools/mcp"
)

// MaxRequests bounds the HTTP requests in flight of one agent: its 32 calls, and as
// many clients' streams.
const MaxRequests = 64

// ErrNotOpen is the error of an agent whose tools cannot be used: it is down.
var ErrNotOpen = errors.New("the agent has no tools now")

// BeginRequest counts an HTTP request in. ok is false when too many are in flight; else the caller calls end.
func (a *Agent) BeginRequest() (end func(), ok bool) { return a.requests.Try() }

// Web returns the agent's tools for HTTP requests, which share one client. An agent
// that is down has none, as it has no socket.
func (a *Agent) Web() (*mcp.Face, error) {
	for {
		a.mu.Lock()
		open, c := a.socket != nil, a.web
		a.mu.Unlock()
		switch {
		case !open:
			return nil, ErrNotOpen
		case c != nil:
			return c.face, nil
		}
		c, err := a.newClient("", "", work{})
		if err != nil {
			return nil, err
		}
		if err = a.admit(c, true); err == nil {
			return c.face, nil
		}
		_ = c.close()
		if !errors.Is(err, errTaken) {
			return nil, err
		}
	}
}

// CloseWeb ends the client of HTTP requests.
func (a *Agent) CloseWeb() {
	a.mu.Lock()
	c := a.web
	a.web = nil
	a.mu.Unlock()
	if c != nil {
		_ = c.close()
	}
}
