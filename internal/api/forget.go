package api

import (
	"context"
	"net/http"

	"github.com/scopefs/scopefs/scope"
)

// ForgetRequest is the body of forget. Without Do nothing is removed.
type ForgetRequest struct {
	Do bool `json:"do"`
}

// Forgotten is what the daemon removes, or has removed.
type Forgotten struct {
	Paths []string `json:"paths"`
}

// Forget returns what a base keeps of an agent, and with do removes it.
func (c *Client) Forget(ctx context.Context, id scope.ID, do bool) (Forgotten, error) {
	return fetch[Forgotten](ctx, c, http.MethodPost, "/v1/agents/"+string(id)+"/forget", ForgetRequest{Do: do})
}
