package daemon

import (
	"context"

	"github.com/scopefs/scopefs/internal/api"
)

// kill ends a session for the operator. Only the id of a session that runs now names one.
func (d *Daemon) kill(ctx context.Context, id string) (api.Session, error) {
	uid, _ := api.PeerOf(ctx)
	for _, a := range d.all() {
		found, err := a.Kill(ctx, id, uid)
		if err != nil {
			return api.Session{}, err
		}
		if found {
			return api.Session{ID: id, Agent: a.ID()}, nil
		}
	}
	return api.Session{}, invalid("no session %.64q runs: scopefs ps has the ids", id)
}
