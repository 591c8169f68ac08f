package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/approvals"
)

// Hello is what a client of tools says first.
type Hello = client.Hello

// Approvals lists the calls that wait for the operator, or that the operator has decided.
func (c *Client) Approvals(ctx context.Context) ([]approvals.Approval, error) {
	return fetch[[]approvals.Approval](ctx, c, http.MethodGet, "/v1/approvals", none{})
}

// Inbox returns what an operator sees at once: requests with what they would do, and how the last ones ended.
func (c *Client) Inbox(ctx context.Context) (approvals.Inbox, error) {
	return fetch[approvals.Inbox](ctx, c, http.MethodGet, "/v1/inbox", none{})
}

// WatchApprovals calls each for every approval that there is, and then for every change,
// until ctx or the daemon ends or each returns an error.
func (c *Client) WatchApprovals(ctx context.Context, each func(approvals.Update) error) error {
	ctx, end := c.Attended(ctx)
	defer end()
	conn, answer, err := c.Request(ctx, http.MethodGet, "/v1/approvals/watch", none{})
	if err != nil {
		return err
	}
	defer conn.Close()
	for lines := json.NewDecoder(answer); ; {
		var change approvals.Update
		if err := lines.Decode(&change); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("the daemon has ended the watch: start it again: %w", err)
		}
		if err := each(change); err != nil {
			return err
		}
	}
}

// Approval returns one approval with all arguments of the call.
func (c *Client) Approval(ctx context.Context, id string) (approvals.Approval, error) {
	return fetch[approvals.Approval](ctx, c, http.MethodGet, "/v1/approvals/"+url.PathEscape(id), none{})
}

// DecideRequest is the body of a decision about an approval.
type DecideRequest struct {
	Scopes   []string         `json:"scopes,omitzero"`    // that the call gets of its context; nil: all
	Paths    []string         `json:"paths,omitempty"`    // of the changes that it shows: patterns of the approved part; none: all
	Standing *approvals.Terms `json:"standing,omitempty"` // approve calls that are still to come, too; nil: this one

	// Shown is the Hash of the approval that the operator saw. With it an approval of what has changed since fails with
	// Conflict, and the error has what waits now. "": any.
	Shown  string `json:"shown,omitempty"`
	Reason string `json:"reason,omitempty"` // of a denial, for the agent: approvals.MaxReason characters
	As     string `json:"as,omitempty"`     // for the log: a name of the operator beside the user's, such as a device
}

// GrantRequest is the body of grant: a standing approval that no request has preceded.
type GrantRequest struct {
	Tool    string        `json:"tool,omitempty"`
	Host    string        `json:"host,omitempty"` // HOST:PORT, as a pattern of approvals; or Tool
	For     time.Duration `json:"for,omitempty"`
	Session bool          `json:"session,omitempty"` // until the present sessions of the agent end, an approval each
}

// Grant makes standing approvals.
func (c *Client) Grant(ctx context.Context, id scope.ID, req GrantRequest) ([]approvals.Approval, error) {
	return fetch[[]approvals.Approval](ctx, c, http.MethodPost, "/v1/agents/"+string(id)+"/grant", req)
}

// Approve grants a call that waits, or makes a standing approval from it.
func (c *Client) Approve(ctx context.Context, id string, how DecideRequest) (approvals.Approval, error) {
	return c.decide(ctx, id, "approve", how)
}

// Deny denies a call that waits.
func (c *Client) Deny(ctx context.Context, id string, how DecideRequest) (approvals.Approval, error) {
	return c.decide(ctx, id, "deny", how)
}

// Revoke ends a standing approval, or one that is not used yet.
func (c *Client) Revoke(ctx context.Context, id string, how DecideRequest) (approvals.Approval, error) {
	return c.decide(ctx, id, "revoke", how)
}

func (c *Client) decide(ctx context.Context, id, word string, how DecideRequest) (approvals.Approval, error) {
	return fetch[approvals.Approval](ctx, c, http.MethodPost, "/v1/approvals/"+url.PathEscape(id)+"/"+word, how)
}

// Token makes a token of an agent for HTTP.
func (c *Client) Token(ctx context.Context, id scope.ID, req TokenRequest) (TokenReply, error) {
	return fetch[TokenReply](ctx, c, http.MethodPost, "/v1/agents/"+string(id)+"/token", req)
}

// Tokens lists the tokens of all agents that have not ended.
func (c *Client) Tokens(ctx context.Context) ([]Token, error) {
	return fetch[[]Token](ctx, c, http.MethodGet, "/v1/tokens", none{})
}

// RevokeTokens revokes a token by its id, or all of an agent, and returns them.
func (c *Client) RevokeTokens(ctx context.Context, name string) ([]Token, error) {
	return fetch[[]Token](ctx, c, http.MethodPost, "/v1/tokens/revoke", RevokeRequest{Name: name})
}
