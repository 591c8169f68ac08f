package cli

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/scope"
)

func (a *app) upCmd() *cobra.Command {
	var at string
	var asJSON bool
	c := &cobra.Command{
		Use:               "up AGENT|--dir DIR [--at DIR]",
		Short:             "mount an agent's view",
		Long:              "Mounts the view of an agent at RUN/views/AGENT or at an empty directory, and prints where.",
		Args:              ofAgent,
		ValidArgsFunction: a.complete,
		RunE: a.askingOf(func(ctx context.Context, client *api.Client, id scope.ID) (err error) {
			if at != "" {
				if at, err = filepath.Abs(at); err != nil {
					return err
				}
			}
			where, err := client.Up(ctx, id, at)
			switch {
			case err != nil:
			case asJSON:
				err = report.Line(a.out, map[string]string{"agent": string(id), "mount": where})
			default:
				fmt.Fprintln(a.out, where)
			}
			return err
		}),
	}
	c.Flags().StringVar(&at, "at", "", "mount at this empty directory")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) downCmd() *cobra.Command {
	return &cobra.Command{
		Use:               "down AGENT|--dir DIR",
		Short:             "end an agent's sandboxes and unmount its view",
		Args:              ofAgent,
		ValidArgsFunction: a.complete,
		RunE:              a.askingOf(func(ctx context.Context, client *api.Client, id scope.ID) error { return client.Down(ctx, id) }),
	}
}

func (a *app) reloadCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "reload",
		Short: "make the daemon read the definitions again",
		Long: `Makes the daemon read agents.d, extensions.d and skills again. It also does so by
itself when a file there changes. When the command returns, mounted views decide by
the new rules (access, paths, hardlinks), tools, skills, servers and members are the
new ones, and new agents are mounted. Other changes need scopefs down and up. A
definition that does not load changes nothing: the command prints the error and
exits with status 1. A name in a definition that no longer exists is a warning.

The daemon reads scopefs.yaml only when it starts. If the file has changed since, the
command reports it and exits with status 1: the daemon has to be restarted.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			all, err := client.Reload(ctx)
			if err != nil {
				return err
			}
			failed := 0
			if asJSON {
				if err := report.JSON(a.out, all); err != nil {
					return err
				}
			}
			for _, r := range all {
				if r.Error != "" {
					failed++
					fmt.Fprintf(a.err, "scopefs: %s\n", strings.TrimPrefix(fmt.Sprintf("%s: %s", r.Outcome, r.Error), ": "))
					continue
				}
				if r.Warning != "" {
					fmt.Fprintf(a.err, "scopefs: warning: %s\n", r.Warning)
					continue
				}
				if !asJSON {
					fmt.Fprintf(a.out, "%s: %s\n", cmp.Or(string(r.Agent), r.File), r.Outcome)
				}
				if r.Restart {
					failed++
				}
			}
			if failed > 0 {
				return exit.With(exit.Failed, nil)
			}
			return nil
		}),
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) psCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "ps",
		Short: "list the agents, their mounts and processes",
		Long: `Lists the agents of the base's or the project's daemon. Outside of a project and without
--base, and with --all, it lists those of all daemons of the user, each with its base: of
the user's own, of projects, and of single commands that run without one. Below
are the addresses at which tools are served, and the streams and anchors of their logs.

Exit status: 0 listed; 1 failure, or every agent has failed. A file that names no agent
does not count.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: a.looking(&asJSON, []api.Agent{}, func(ctx context.Context, client *api.Daemons, _ []string) error {
			list, err := client.Agents(ctx)
			if err != nil {
				return err
			}
			if err = a.print(report.Agents(list), asJSON); err == nil && !asJSON {
				for _, below := range []printer{report.Doors(client.Doors(ctx)), report.Streams(client.Streams(ctx)),
					report.Anchors(client.Anchors(ctx))} {
					err = cmp.Or(err, below.Print(a.out))
				}
			}
			if err == nil && allFailed(list) {
				return exit.With(exit.Failed, nil)
			}
			return err
		}),
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	a.addAll(c)
	return c
}

// allFailed reports whether there are agents, and all have failed. A file of no agent is not one, and an agent that another node of
// the fleet has does not fail here.
func allFailed(list []api.Agent) bool {
	failed := 0
	for _, g := range list {
		switch {
		case g.ID == "" && g.NotLoaded:
		case g.State != api.Failed, g.Lease != nil && g.Lease.Left == 0 && g.Lease.Node != "":
			return false
		default:
			failed++
		}
	}
	return failed > 0
}

func (a *app) killCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "kill SESSION",
		Short: "end one session of an agent",
		Long: `Ends a session: every process of its sandbox, its calls in flight, and the approvals
that wait for it. Other sessions of the agent go on. SESSION is an id of scopefs ps or
scopefs top, or session of scopefs audit --json.

A client of the tools, such as scopefs mcp, is disconnected. The program that started it
runs outside of the sandbox and may connect again, as a new session: scopefs down AGENT
ends that too.

If the kernel cannot end the processes within five seconds, because they are frozen, the
command says so and exits with status 1.`,
		Args:              exit.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeSessions,
		RunE: a.operating(func(ctx context.Context, client *api.Daemons, words []string) error {
			s, err := client.Kill(ctx, words[0])
			switch {
			case err != nil:
			case asJSON:
				err = report.Line(a.out, map[string]string{"session": s.ID, "agent": string(s.Agent)})
			default:
				fmt.Fprintf(a.out, "%s of %s: killed\n", s.ID, s.Agent)
			}
			return err
		}),
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	a.addAll(c)
	return c
}

// completeSessions returns the ids of sessions for shell completion.
func (a *app) completeSessions(c *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
	var ids []string
	if client, err := a.daemons(c.Context()); err == nil && len(words) == 0 {
		list, _ := client.Agents(c.Context())
		for _, g := range list {
			ids = append(ids, g.Sessions...)
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}
