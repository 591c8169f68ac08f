package api

import (
	"context"
	"net/http"
)

// ConsoleLink returns a link by which a browser enters the daemon's web page once, or which pairs a device. It fails if the
// daemon serves none.
func (c *Client) ConsoleLink(ctx context.Context, req LinkRequest) (LinkReply, error) {
	return fetch[LinkReply](ctx, c, http.MethodPost, "/v1/console/link", req)
}

// LinkRequest is the body of POST /v1/console/link. Without a name the link is the operator's.
type LinkRequest struct {
	Pair string `json:"pair,omitempty"` // the name of the device to pair
	Role string `json:"role,omitempty"` // of package devices
}

// LinkReply is the answer of POST /v1/console/link.
type LinkReply struct {
	Link string `json:"link"`
	QR   string `json:"qr,omitempty"` // of a link that pairs, in lines of a terminal
}

// RecordDevice has the daemon record that a device is paired, or removed. The caller does it afterwards.
func (c *Client) RecordDevice(ctx context.Context, req DeviceRequest) error {
	_, err := fetch[struct{}](ctx, c, http.MethodPost, "/v1/console/devices", req)
	return err
}

// DeviceRequest is the body of POST /v1/console/devices.
type DeviceRequest struct {
	Name    string `json:"name"`
	Role    string `json:"role"` // of package devices
	Removed bool   `json:"removed,omitempty"`
	As      string `json:"as,omitempty"` // for the log: see DecideRequest
}
