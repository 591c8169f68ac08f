package api

import (
	"context"
	"net/http"
	"time"
)

// Anchor is how far an anchor of the log is.
type Anchor struct {
	Name  string    `json:"name"`
	Kept  time.Time `json:"kept,omitzero"`   // when it last had the newest head; zero: not since the daemon started
	Size  int64     `json:"size,omitempty"`  // lines below that head
	Late  bool      `json:"late,omitempty"`  // an alarm was recorded, and no head was taken since
	Error string    `json:"error,omitempty"` // of the last try; "": it did not fail
	Base  string    `json:"base,omitempty"`  // of several daemons
}

// Anchors lists the anchors of the log.
func (c *Client) Anchors(ctx context.Context) ([]Anchor, error) {
	return fetch[[]Anchor](ctx, c, http.MethodGet, "/v1/anchors", none{})
}

// Anchors lists the anchors of the daemons that answer.
func (d *Daemons) Anchors(ctx context.Context) []Anchor {
	return listed(d, func(c *Client) ([]Anchor, error) { return c.Anchors(ctx) }, func(a *Anchor, base string) { a.Base = base })
}
