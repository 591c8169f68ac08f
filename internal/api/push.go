package api

import (
	"context"
	"net/http"
	"net/url"
)

// PushReply says how a device of the console is woken.
type PushReply struct {
	Key   string `json:"key"`   // for which a browser subscribes: base64url; "": no service is configured
	Wakes bool   `json:"wakes"` // the device has subscribed
}

// PushRequest sets where a device of the console is woken; without an endpoint, nowhere.
type PushRequest struct {
	Device   string `json:"device"` // its id
	Endpoint string `json:"endpoint"`
}

// Push returns how the device with an id is woken.
func (c *Client) Push(ctx context.Context, device string) (PushReply, error) {
	return fetch[PushReply](ctx, c, http.MethodGet, "/v1/console/push?device="+url.QueryEscape(device), nil)
}

// SetPush sets where a device is woken.
func (c *Client) SetPush(ctx context.Context, req PushRequest) error {
	_, err := fetch[PushReply](ctx, c, http.MethodPost, "/v1/console/push", req)
	return err
}
