package api

import (
	"context"
	"net/http"

	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/config"
)

// BaseRequest is the body of POST /v1/bases. The answer is the base's config.Paths.
type BaseRequest struct {
	Base string   `json:"base"`
	Env  []string `json:"env"` // of the daemon of the base, if one has to be started
}

// UserDaemon returns a client of the user's daemon.
func UserDaemon(own config.Paths) *Client { return &Client{client.At(own, own.UserDaemon())} }

// OpenBase has the user's daemon serve a base, and returns its directories when its daemon answers.
func (c *Client) OpenBase(ctx context.Context, req BaseRequest) (config.Paths, error) {
	return fetch[config.Paths](ctx, c, http.MethodPost, "/v1/bases", req)
}

// Stop ends a daemon. That of a user returns after the end of those of his bases.
func (c *Client) Stop(ctx context.Context) error {
	return c.Call(ctx, http.MethodPost, "/v1/stop", none{}, &none{})
}

// Answers reports whether something listens at the control socket.
func (c *Client) Answers(ctx context.Context) bool {
	conn, err := c.Dial(ctx)
	if err == nil {
		conn.Close()
	}
	return err == nil
}
