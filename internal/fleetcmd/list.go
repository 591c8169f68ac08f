package fleetcmd

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/fleet/reader"
	"github.com/scopefs/scopefs/internal/fleet/wire"
	"github.com/scopefs/scopefs/internal/report"
)

// heard says when a node was last heard.
func heard(n api.FleetNode) (state string, age time.Duration) {
	if !n.Heard.IsZero() {
		age = max(time.Since(n.Heard), 0).Round(time.Second)
	}
	if n.Silent {
		return "silent", age
	}
	return "heard", age
}

func (v Env) ps() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "ps", Short: "list the nodes, and which are not heard", Args: exit.Args(cobra.NoArgs),
		Long: `Lists the nodes. A node says every 3 seconds that it is there; after 10 seconds it is silent, and what is shown of it is as
old as AGE.`,
		RunE: v.with(func(ctx context.Context, s *reader.Server, _ []string) error {
			all, err := s.Nodes(ctx)
			if err != nil {
				return err
			}
			if asJSON {
				return report.JSON(v.Out, all)
			}
			return v.nodes(all)
		}),
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (v Env) nodes(all []wire.SeenNode) error {
	var t report.Table
	t.Row("NODE", "STATE", "AGE", "AGENTS", "MOUNTED", "SESSIONS", "WAITING", "VERSION")
	for _, n := range all {
		sum := reader.Sum(n, time.Now())
		state, age := heard(sum)
		t.Row(n.Name, state, age, sum.Agents, sum.Mounted, sum.Sessions, sum.Waits, sum.Version)
	}
	return t.Print(v.Out)
}

// nodeAgent is an agent of a node.
type nodeAgent struct {
	Node  string    `json:"node"`
	Heard time.Time `json:"heard"`
	api.Agent
}

func (v Env) agents() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "agents", Short: "list the agents of all nodes", Args: exit.Args(cobra.NoArgs),
		RunE: v.with(func(ctx context.Context, s *reader.Server, _ []string) error {
			nodes, err := s.Nodes(ctx)
			if err != nil {
				return err
			}
			all, t := []nodeAgent{}, report.Table{}
			t.Row("NODE", "AGENT", "STATE", "SESSIONS", "AGE", "")
			for _, n := range nodes {
				state, age := heard(reader.Sum(n, time.Now()))
				for _, a := range n.Agents {
					all = append(all, nodeAgent{n.Name, n.Heard, a})
					shown := string(a.State)
					if state == "silent" {
						shown = "silent, was " + shown
					}
					t.Row(n.Name, cmp.Or(string(a.ID), "-"), shown, len(a.Sessions), age, a.Error)
				}
				if n.More > 0 {
					t.Row(n.Name, "and", n.More, "more", age, "")
				}
			}
			if asJSON {
				return report.JSON(v.Out, all)
			}
			return t.Print(v.Out)
		}),
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
