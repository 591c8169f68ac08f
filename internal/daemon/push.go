package daemon

import (
	"net/http"
	"slices"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/devices"
	"github.com/scopefs/scopefs/internal/push"
	"github.com/scopefs/scopefs/tools/approvals"
)

// pushes is what wakes the devices of the console; zero: nothing does.
type pushes struct {
	store  *devices.Store
	sender *push.Sender
}

// openPushes opens it, if scopefs.yaml names a service, until end.
func (d *Daemon) openPushes() (end func()) {
	services := d.Settings.Console.Push
	if len(services) == 0 {
		return func() {}
	}
	store, err := devices.Open(d.Paths.State)
	if err == nil {
		if d.pushes.sender, err = push.Open(d.Paths.State, services, store, d.Logger); err != nil {
			store.Close()
		}
	}
	if err != nil {
		d.Logger.Error("no device of the console is woken", "err", err)
		return func() {}
	}
	d.pushes.store = store
	return func() { store.Close() }
}

// waits reports whether anything waits for the operator.
func (d *Daemon) waits() bool {
	return slices.ContainsFunc(d.Approvals.List(), func(p approvals.Approval) bool { return p.State == approvals.Waits })
}

func (d *Daemon) pushHandlers(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/console/push", func(w http.ResponseWriter, r *http.Request) {
		var answer api.PushReply
		if s := d.pushes.sender; s != nil {
			answer.Key = s.Key()
			device, err := d.pushes.store.Get(r.FormValue("device"))
			if err != nil {
				fail(w, http.StatusBadRequest, err)
				return
			}
			answer.Wakes = device.Push != ""
		}
		_ = reply(w, answer)
	})
	mux.HandleFunc("POST /v1/console/push", d.changing(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		var req api.PushRequest
		if err := body(r, &req); err != nil {
			return nil, err
		}
		if d.pushes.sender == nil {
			return nil, invalid("console: scopefs.yaml names no push service: add one to console.push")
		}
		return api.PushReply{}, d.pushes.sender.Subscribe(req.Device, req.Endpoint)
	}))
}
