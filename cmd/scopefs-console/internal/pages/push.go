package pages

import (
	"context"
	"net/http"

	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/access"
	"github.com/scopefs/scopefs/internal/api"
)

// push returns the push subscription that wakes the visitor's device when an approval waits. It returns the zero value for a
// visitor without a device.
func (s *Site) push(ctx context.Context) (api.PushReply, error) {
	id := access.Of(ctx).ID
	if id == "" {
		return api.PushReply{}, nil
	}
	return s.client.Push(ctx, id)
}

// setPush stores the endpoint to which the daemon sends the notifications of this device, or removes it. The daemon checks the endpoint.
func (s *Site) setPush(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	endpoint, id := r.PostFormValue("endpoint"), access.Of(ctx).ID
	var err error
	switch do := r.PostFormValue("do"); {
	case id == "":
		err = invalid("this browser is not paired: scopefs console pair")
	case do == "on" && endpoint == "":
		err = invalid("the browser has made no subscription: its scripts do that")
	case do == "on":
		err = s.client.SetPush(ctx, api.PushRequest{Device: id, Endpoint: endpoint})
	case do == "off":
		err = s.client.SetPush(ctx, api.PushRequest{Device: id})
	default:
		err = invalid("%q is neither on nor off", do)
	}
	if err != nil {
		s.write(w, r, failed(err))
		return
	}
	http.Redirect(w, r, s.root+"/inbox", http.StatusSeeOther)
}
