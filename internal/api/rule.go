package api

import (
	"context"
	"net/http"

	"github.com/scopefs/scopefs/scope"
)

// RuleRequest is the body of rule: a change of an agent's definition, as scopefs allow and deny make it. Without Shown
// nothing is written.
type RuleRequest struct {
	Name       string `json:"name"`
	Kind       string `json:"kind,omitempty"`   // host, tool, path or preset; "": found by the name
	Deny       bool   `json:"deny,omitempty"`   // deny it; else allow it
	Access     string `json:"access,omitempty"` // of a path: read, write or hide; "": write, or hide with Deny
	RemoveDeny bool   `json:"remove_deny,omitempty"`
	Shown      string `json:"shown,omitempty"` // the Hash of the Rule to write: another change is a Conflict
	As         string `json:"as,omitempty"`    // for the log: see DecideRequest
}

// Rule is a change of a definition. Before and After are equal if nothing changes.
type Rule struct {
	File     string     `json:"file"`
	Before   string     `json:"before"`
	After    string     `json:"after"`
	Hash     string     `json:"hash"`
	Said     string     `json:"said"`                 // what the rules then say
	InTheWay []string   `json:"in_the_way,omitempty"` // rules that deny it, without RemoveDeny: nothing changes
	Reloaded []Reloaded `json:"reloaded,omitempty"`   // of a change that was written: what the daemon did with it
}

// Rule returns a change of an agent's definition, and with RuleRequest.Shown makes it.
func (c *Client) Rule(ctx context.Context, id scope.ID, req RuleRequest) (Rule, error) {
	return fetch[Rule](ctx, c, http.MethodPost, "/v1/agents/"+string(id)+"/rule", req)
}
