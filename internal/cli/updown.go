package cli

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/scope"
)

func (a *app) upCmd() *cobra.Command {
	var at string
	c := &cobra.Command{
		Use:               "up AGENT [--at DIR]",
		Short:             "mount an agent's view",
		Long:              "Mounts the view of an agent at RUN/views/AGENT or at an empty directory, and prints where.",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.complete,
		RunE: func(c *cobra.Command, words []string) error {
			client, id, err := a.client(words[0])
			if err != nil {
				return err
			}
			if at != "" {
				if at, err = filepath.Abs(at); err != nil {
					return err
				}
			}
			where, err := client.Up(c.Context(), id, at)
			if err != nil {
				return err
			}
			fmt.Fprintln(a.out, where)
			return nil
		},
	}
	c.Flags().StringVar(&at, "at", "", "mount at this empty directory")
	return c
}

func (a *app) downCmd() *cobra.Command {
	return &cobra.Command{
		Use:               "down AGENT",
		Short:             "end an agent's sandboxes and unmount its view",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.complete,
		RunE: func(c *cobra.Command, words []string) error {
			client, id, err := a.client(words[0])
			if err != nil {
				return err
			}
			return client.Down(c.Context(), id)
		},
	}
}

func (a *app) reloadCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "reload",
		Short: "make the daemon read the definitions again",
		Long: `Makes the daemon read agents.d, extensions.d and skills again. It also does so by
itself when a file there changes. When the command returns, mounted views decide by
the new rules (access, paths, hardlinks), tools, skills, servers and members are the
new ones, and new agents are mounted. Other changes need scopefs down and up. A
definition that does not load changes nothing: the command prints the error and
exits with status 1. A name in a definition that no longer exists is a warning.

The daemon reads scopefs.yaml only when it starts. The command reports if the file has
changed since.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := a.paths()
			if err != nil {
				return err
			}
			all, err := api.NewClient(p).Reload(c.Context())
			if err != nil {
				return err
			}
			failed := 0
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
				fmt.Fprintf(a.out, "%s: %s\n", cmp.Or(string(r.Agent), r.File), r.Outcome)
			}
			if failed > 0 {
				return &exitError{code: exitFailed}
			}
			return nil
		},
	}
}

func (a *app) psCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "ps",
		Short: "list the agents, their mounts and processes",
		Args:  args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := a.paths()
			if err != nil {
				return err
			}
			list, err := api.NewClient(p).Agents(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(list)
			}
			return a.printAgents(list)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) killCmd() *cobra.Command {
	return &cobra.Command{
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
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeSessions,
		RunE: func(c *cobra.Command, words []string) error {
			p, err := a.paths()
			if err != nil {
				return err
			}
			s, err := api.NewClient(p).Kill(c.Context(), words[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(a.out, "%s of %s: killed\n", s.ID, s.Agent)
			return nil
		},
	}
}

// completeSessions returns the ids of sessions for shell completion.
func (a *app) completeSessions(c *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
	var ids []string
	if p, err := a.paths(); err == nil && len(words) == 0 {
		list, _ := api.NewClient(p).Agents(c.Context())
		for _, g := range list {
			ids = append(ids, g.Sessions...)
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) printAgents(list []api.Agent) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "AGENT\tSTATE\tVIEW\tSESSIONS\tMOUNT")
	for _, g := range list {
		view, boxes := "-", "-"
		if g.ViewPID != 0 {
			view = strconv.Itoa(g.ViewPID)
		}
		if len(g.Sessions) > 0 {
			boxes = strings.Join(g.Sessions, " ")
		}
		where := g.Mount
		switch {
		case g.Hidden == 1:
			where += " (hides 1 entry of the directory below)"
		case g.Hidden > 1:
			where += fmt.Sprintf(" (hides %d entries of the directory below)", g.Hidden)
		}
		if g.Error != "" {
			where = strings.TrimSpace(where + " (" + g.Error + ")")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", g.ID, g.State, view, boxes, where)
	}
	return w.Flush()
}

// client returns a client of the daemon and the named agent.
func (a *app) client(name string) (*api.Client, scope.ID, error) {
	p, err := a.paths()
	if err != nil {
		return nil, "", err
	}
	id, err := scope.ParseID(name)
	if err != nil {
		return nil, "", err
	}
	return api.NewClient(p), id, nil
}
