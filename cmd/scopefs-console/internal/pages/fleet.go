package pages

import (
	"context"
	"errors"
	"net/http"

	"github.com/scopefs/scopefs/internal/api"
)

// fleet is the page of the nodes of the daemon's fleet. The key that signs decisions for them is the operator's, and not here.
func (s *Site) fleet(ctx context.Context, r *http.Request) (page, error) {
	seen, err := s.client.Fleet(ctx)
	var data struct {
		api.Fleet
		Listed listed
		Away   error // why the fleet's server does not answer
	}
	if _, joined, _ := s.live.state(); err != nil && (!joined || errors.Is(err, api.ErrNoDaemon)) {
		return page{}, err
	}
	data.Away = err
	data.Waits, data.More = seen.Waits, seen.More
	data.Nodes, data.Listed, err = listOf(r, seen.Nodes, func(n api.FleetNode) string { return n.Name })
	return page{Name: "fleet", Title: fleetTitle, Follow: "fleet", Data: data}, err
}
