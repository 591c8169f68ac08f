package api

import (
	"context"
	"net/http"
	"time"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/approvals"
)

// Fleet is what the nodes of the daemon's fleet say of themselves, as of the fleet's server. All of it is text of others.
type Fleet struct {
	Nodes []FleetNode `json:"nodes"`          // by name
	Waits []FleetWait `json:"waits"`          // by node
	More  int         `json:"more,omitempty"` // requests that Waits has not
}

// FleetNode is a node in short.
type FleetNode struct {
	Name     string       `json:"node"`
	Version  string       `json:"version"`
	Heard    time.Time    `json:"heard"`            // when it was last heard; zero: never
	Silent   bool         `json:"silent,omitempty"` // it was not heard for 10 s
	Agents   int          `json:"agents"`
	Mounted  int          `json:"mounted"`
	Sessions int          `json:"sessions"`
	Waits    int          `json:"waits"`
	Failed   []FleetAgent `json:"failed,omitempty"` // 8 at most
}

// FleetAgent is an agent without a view, and why.
type FleetAgent struct {
	ID    scope.ID `json:"agent"`
	State State    `json:"state"`
	Error string   `json:"error"`
}

// FleetWait is a request that waits on a node, Brief.
type FleetWait struct {
	Node  string `json:"node"`
	About string `json:"about"` // the command, the path, or the beginning of the arguments
	approvals.Approval
}

// Fleet returns what the nodes of the daemon's fleet say of themselves, at most 2 s old.
func (c *Client) Fleet(ctx context.Context) (Fleet, error) {
	return fetch[Fleet](ctx, c, http.MethodGet, "/v1/fleet", none{})
}
