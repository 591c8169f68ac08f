package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/programs"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/widening"
)

func (a *app) agentsCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "agents",
		Short: "list the defined agents, show what one may do, check files",
		Long: `Reads the definitions in agents.d as a daemon that started now would. It needs no
daemon. Without a subcommand it lists the agents.

Exit status: 0 every definition loads, 1 one does not, 2 bad usage.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return a.listAgents(asJSON) },
	}
	list := &cobra.Command{
		Use:   "list",
		Short: "list the agents and the definitions that do not load",
		Args:  exit.Args(cobra.NoArgs),
		RunE:  c.RunE,
	}
	show := &cobra.Command{
		Use:               "show AGENT|--dir DIR",
		Short:             "show what an agent may do, and by which rules",
		Args:              ofAgent,
		ValidArgsFunction: a.complete,
		RunE: func(c *cobra.Command, words []string) error {
			p, id, err := a.agentNamed(c.Context(), words...)
			if err != nil {
				return err
			}
			r, err := report.ShowAgent(p, definitions.Read(p, nil), id)
			if err != nil {
				return err
			}
			return a.print(r, asJSON)
		},
	}
	check := &cobra.Command{
		Use:   "check [FILE...]",
		Short: "report errors and warnings in definitions",
		Long: `Checks files as if they were in agents.d, or in extensions.d if their name ends in
.yaml, .yml or .json, together with the files there. Without arguments it checks
all files there, scopefs.yaml, programs.d and, for a project and for the user's own base, the
user's settings in ~/.config/scopefs; without a base these alone. It prints one line for each
error and each warning. A warning is a list for which the agent has no tool, a name of
something that was removed since a daemon loaded the file, a dir that does not exist, a
file that is not read, or keys that a mounted view has only after scopefs down and up.

${VAR} is read from the environment of this command, not of the daemon.

Exit status: 0 all files would load, 1 one would not, 2 bad usage.`,
		RunE: func(c *cobra.Command, files []string) error { return a.checkFiles(c.Context(), files, asJSON) },
	}
	for _, c := range []*cobra.Command{c, list, show, check} {
		c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	}
	c.AddCommand(list, show, check, a.importCmd())
	return c
}

func (a *app) listAgents(asJSON bool) error {
	p, err := a.paths()
	if err != nil {
		return err
	}
	all, errs, err := definitions.Load(p)
	if err != nil {
		return err
	}
	for _, err := range all.Warnings {
		if !asJSON {
			fmt.Fprintf(a.err, "scopefs: warning: %s\n", printable.Text(err.Error()))
		}
	}
	if err := a.print(report.ListDefinitions(all, errs), asJSON); err != nil {
		return err
	}
	return notAll(errs)
}

// notAll returns an error with the exit status for definitions that do not load.
func notAll(errs []error) error {
	if len(errs) > 0 {
		return exit.With(exit.Failed, nil)
	}
	return nil
}

// checkFiles prints the errors and warnings of files, or of all definitions.
func (a *app) checkFiles(ctx context.Context, files []string, asJSON bool) error {
	p, err := a.settingsPaths()
	if err != nil {
		return err
	}
	if p.Base == "" && len(files) == 0 { // the user's settings alone
		_, err := definitions.Host(p)
		return a.checkSettings(p, err, asJSON)
	}
	if p, err = a.paths(); err != nil {
		return err
	}
	all, errs, err := definitions.Load(p)
	if err != nil {
		return a.checkSettings(p, err, asJSON)
	}
	_, wrong := programs.All(p.Base, p.User)
	errs = append(errs, wrong...)
	warnings := all.Warnings
	if len(files) > 0 {
		errs, warnings = nil, nil
	}
	scopes := filepath.Join(p.Base, "agents")
	if log, _ := os.ReadDir(p.Audit()); len(log) > 0 && len(files) == 0 { // the first daemon makes it
		if _, err := os.Stat(scopes); errors.Is(err, fs.ErrNotExist) {
			warnings = append(warnings, fmt.Errorf("%s does not exist: mount its file system, or make it (mkdir -m 711)", scopes))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(all.Agents)) {
		def := all.Agents[id]
		if root, err := def.OpenRoot(p.Base); err == nil {
			root.Close()
		} else if def.Dir != "" && len(files) == 0 {
			warnings = append(warnings, &fields.FileError{File: def.File, Agent: id, Err: err})
		}
	}
	for _, name := range files {
		text, err := readFile(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		wrong, odd := all.Check(name, text)
		errs, warnings = append(errs, wrong...), append(warnings, odd...)
		if agent, _, _ := all.Try(name, text); agent != nil && wrong == nil && all.Agents[agent.Name] != nil {
			for _, e := range widening.Of(agent, all.Agents[agent.Name]) {
				fmt.Fprintln(a.out, printable.Text(name+": allows: "+e.String()))
			}
		}
	}
	found := report.Found(errs, warnings)
	if len(files) == 0 {
		mounted, _ := api.NewClient(p).Agents(ctx) // without a daemon nothing waits
		for _, g := range mounted {
			if len(g.Waits) > 0 {
				found = append(found, report.Finding{Agent: g.ID, Warning: fmt.Sprintf("%s: %s", g.ID, report.Waits(g))})
			}
		}
	}
	return errors.Join(a.print(found, asJSON), notAll(errs))
}

// checkSettings prints the errors of what holds for all agents but scopefs.yaml, and returns that of scopefs.yaml.
func (a *app) checkSettings(p config.Paths, host error, asJSON bool) error {
	_, wrong := programs.All(p.Base, p.User)
	errs := append(agents.CheckLists(p.Base, p.User), wrong...)
	return errors.Join(a.print(report.Found(errs, nil), asJSON), cmp.Or(host, notAll(errs)))
}

// readFile reads up to 2 MiB of a file, more than a definition may have: the check
// then reports that the file is too large.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: does not exist: correct the name", name)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 2<<20))
}
