package fleetcmd

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/fleet/wire"
	"github.com/scopefs/scopefs/internal/report"
)

// silentTime is how long a node may say nothing: three beats.
const silentTime = 10 * time.Second

// heard says when a node was last heard.
func heard(n wire.SeenNode, now time.Time) (state string, age time.Duration) {
	if n.Heard.IsZero() {
		return "silent", 0
	}
	if age = max(now.Sub(n.Heard), 0).Round(time.Second); age > silentTime {
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
		RunE: v.with(func(ctx context.Context, s *server, _ []string) error {
			all, err := s.nodes(ctx)
			if err != nil {
				return err
			}
			if asJSON {
				return report.JSON(v.Out, all)
			}
			var t report.Table
			t.Row("NODE", "STATE", "AGE", "AGENTS", "MOUNTED", "SESSIONS", "WAITING", "VERSION")
			for _, n := range all {
				mounted, sessions := 0, 0
				for _, a := range n.Agents {
					if sessions += len(a.Sessions); a.State == api.Mounted {
						mounted++
					}
				}
				state, age := heard(n, time.Now())
				t.Row(n.Name, state, age, len(n.Agents)+n.More, mounted, sessions, n.Waits, n.Version)
			}
			return t.Print(v.Out)
		}),
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
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
		RunE: v.with(func(ctx context.Context, s *server, _ []string) error {
			nodes, err := s.nodes(ctx)
			if err != nil {
				return err
			}
			all, t := []nodeAgent{}, report.Table{}
			t.Row("NODE", "AGENT", "STATE", "SESSIONS", "AGE", "")
			for _, n := range nodes {
				state, age := heard(n, time.Now())
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
