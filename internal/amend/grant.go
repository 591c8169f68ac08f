package amend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/approvals"
)

// Always is the length of a change that [Draft.Allow] makes, in the definition.
const Always = "always"

// Lend allows hosts and tools for some time, "session" or a duration, in the daemons of places that serve the agent. It makes
// standing approvals and writes nothing: they lift no rule that denies. kind is that of all names; "": found by the name.
func (d *Draft) Lend(ctx context.Context, places []config.Paths, kind Kind, names []string,
	length string) (made []approvals.Approval, err error) {
	terms := api.GrantRequest{Session: length == "session"}
	if !terms.Session {
		if terms.For, err = time.ParseDuration(length); err != nil || terms.For <= 0 {
			return nil, fmt.Errorf("--for %s: write a time such as 1h, session, or %s", length, Always)
		}
	}
	var all []api.GrantRequest
	for _, name := range names {
		req, err := d.grant(Change{Name: name, Kind: kind}, terms)
		if err != nil {
			return nil, err
		}
		all = append(all, req)
	}
	var first error
	for _, p := range places {
		for _, req := range all {
			granted, err := api.NewClient(p).Grant(ctx, d.agent.Name, req)
			made = append(made, granted...)
			if !errors.Is(err, api.ErrNoDaemon) {
				first = cmp.Or(first, err)
			}
		}
	}
	switch {
	case len(made) == 0 && first == nil:
		return nil, fmt.Errorf("%w for %s, and --for ends with it: start one, or leave --for out", api.ErrNoDaemon, d.agent.Name)
	case len(made) == 0:
		return nil, first
	}
	return made, nil
}

// grant returns the request for a standing approval of a host or a tool.
func (d *Draft) grant(c Change, req api.GrantRequest) (api.GrantRequest, error) {
	t, err := d.target(c)
	if err != nil {
		return req, err
	}
	var now scope.Decision
	switch r := t.rule.(type) {
	case hostRule:
		refused := func(n scope.Decision) bool { return !n.Allow && !n.Ask && !n.Others }
		now = r.allowed(d.agent)
		if no, ok := r.any(d.agent.Grants.Hosts(), refused); ok {
			now = no
		}
		ports := "80,443"
		if r.port != 0 {
			ports = strconv.Itoa(int(r.port))
		}
		req.Host = net.JoinHostPort(r.name, ports)
	case toolRule:
		now = r.decide(d.agent)
		req.Tool = r.name.Name
		if r.name.Server != "" {
			req.Tool = r.text
		}
	default:
		return req, fmt.Errorf(
			"%s is a %s, which only a rule of the definition allows: leave --for out; scopefs deny takes it back", t.text, t.kind)
	}
	switch {
	case now.Allow:
		return req, fmt.Errorf("%s is allowed already (%s)", t.text, now.Rule)
	case !now.Ask && !now.Others:
		return req, fmt.Errorf("%s: %s stands in the way, which --for does not lift: leave --for out", t.text, now.Rule)
	}
	return req, nil
}

// Reload waits until the daemon, if one runs, has the definition of an agent. It reports whether one runs, and returns the keys for
// which the view has to be mounted again.
func Reload(ctx context.Context, client *api.Client, id scope.ID) (running bool, waits []string, err error) {
	all, err := client.Reload(ctx)
	if errors.Is(err, api.ErrNoDaemon) {
		return false, nil, nil
	}
	if err != nil {
		return true, nil, fmt.Errorf("the definition is written, and the daemon has not read it: %w", err)
	}
	for _, r := range all {
		if r.Agent == id && r.Error != "" {
			return true, nil, fmt.Errorf("the definition is written, and the daemon does not take it: %s", r.Error)
		}
		if r.Agent == id {
			waits = append(waits, r.Waits...)
		}
	}
	return true, waits, nil
}
