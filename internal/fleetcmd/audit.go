package fleetcmd

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/fleet/reader"
	"github.com/scopefs/scopefs/internal/fleet/wire"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/scope"
)

// auditOptions are the flags of audit.
type auditOptions struct {
	wire.Query
	since                string
	denied, follow, json bool
}

// followWait is how long a page of events waits for the first.
const followWait = time.Second

func (v Env) audit() *cobra.Command {
	var o auditOptions
	c := &cobra.Command{
		Use: "audit", Short: "read the events of all nodes", Args: exit.Args(cobra.NoArgs),
		Long: `Prints the events that nodes have published, in the order in which the server got them. The server can leave out or make up
events: the proof of an event is its node's (scopefs audit prove, there). --since is by the server's time.`,
		RunE: v.with(func(ctx context.Context, s *reader.Server, _ []string) (err error) {
			if o.Agent != "" {
				if _, err := scope.ParseID(o.Agent); err != nil {
					return err
				}
			}
			if o.since != "" {
				if o.Since, err = report.Since(o.since, time.Now()); err != nil {
					return err
				}
			}
			return v.events(ctx, s, o)
		}),
	}
	f := c.Flags()
	f.StringVar(&o.Node, "node", "", "only this node's")
	f.StringVar(&o.Agent, "agent", "", "only this agent's")
	f.StringVar(&o.since, "since", "", "only from then on")
	f.BoolVar(&o.denied, "denied", false, "only denials and violations")
	f.BoolVarP(&o.follow, "follow", "f", false, "then wait for more")
	f.BoolVar(&o.json, "json", false, "print lines of JSON: the node, and the event as in its log")
	return c
}

func (v Env) events(ctx context.Context, s *reader.Server, o auditOptions) error {
	last := map[string]uint64{} // the number of the last event of a node and its log
	for {
		page, err := wire.Events.Call(ctx, s.Conn, o.Query)
		if ctx.Err() != nil {
			return nil // interrupted
		}
		if err != nil {
			return err
		}
		for _, got := range page.Events {
			if err := v.event(got, o, last); err != nil {
				return err
			}
		}
		o.After = page.After
		switch {
		case !page.End:
		case !o.follow:
			return nil
		default:
			o.Wait = followWait
		}
	}
}

// event prints an event, once: after a cut a node sends some again.
func (v Env) event(got wire.SeenEvent, o auditOptions, last map[string]uint64) error {
	var e audit.Event
	if err := json.Unmarshal(got.Line, &e); err != nil {
		_, err := fmt.Fprintf(v.Err, "scopefs: a line of the node %s is no event: skipped\n", printable.Text(got.Node))
		return err
	}
	if e.Seq <= last[got.Node+"."+got.Log] {
		return nil
	}
	last[got.Node+"."+got.Log] = e.Seq
	if o.denied && e.Verdict != audit.Deny && e.Verdict != audit.Violation {
		return nil
	}
	if o.json {
		return report.Line(v.Out, struct {
			Node  string          `json:"node"`
			Event json.RawMessage `json:"event"`
		}{got.Node, got.Line})
	}
	_, err := fmt.Fprintln(v.Out, report.NodeEvent(got.Node, e))
	return err
}
