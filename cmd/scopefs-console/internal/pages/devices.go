package pages

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/access"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/devices"
)

// devicesPage is what the template devices gets.
type devicesPage struct {
	Devices []devices.Device
	Own     string // the id of the visitor's device; "": it has none
	Notice  string
}

// devices is the page of the paired devices.
func (s *Site) devices(ctx context.Context, _ *http.Request) (page, error) {
	return s.devicesOf(ctx, "")
}

func (s *Site) devicesOf(ctx context.Context, notice string) (page, error) {
	list, err := s.store.List()
	return page{Name: "devices", Title: "Devices", Data: devicesPage{list, access.Of(ctx).ID, notice}}, err
}

// removeDevice removes a device, as scopefs console devices remove does. The door then ends its logins.
func (s *Site) removeDevice(ctx context.Context, id string) (notice string, err error) {
	list, err := s.store.List()
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(list, func(d devices.Device) bool { return d.ID == id })
	if at < 0 {
		return "", devices.ErrUnknown
	}
	if err := s.store.Remove(id); err != nil {
		return "", err
	}
	notice = list[at].Name + " is removed."
	gone := api.DeviceRequest{Name: list[at].Name, Role: string(list[at].Role), Removed: true, As: access.Of(ctx).As()}
	err = s.client.RecordDevice(ctx, gone)
	if err != nil { // a device that was stolen is out all the same
		notice = fmt.Sprintf("%s is removed, and the log has no event of it: %v", list[at].Name, err)
	}
	return notice, nil
}

// remove removes any device.
func (s *Site) remove(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	id := r.PostFormValue("id")
	notice, err := s.removeDevice(ctx, id)
	var p page
	if err == nil && id == access.Of(ctx).ID {
		s.Own(w, http.StatusOK, "closed", notice)
		return
	}
	if err == nil {
		p, err = s.devicesOf(ctx, notice)
	}
	if err != nil {
		p = failed(err)
	}
	s.write(w, r, p)
}

// removeOwn removes the visitor's own device.
func (s *Site) removeOwn(w http.ResponseWriter, r *http.Request) {
	if own := access.Of(r.Context()).ID; own == "" || r.PostFormValue("id") != own {
		s.write(w, r, failed(invalid("this is not the device of this browser: its page has a button for it")))
		return
	}
	s.remove(w, r)
}
