package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools"
)

func (a *app) agentsCmd() *cobra.Command {
	var asJSON bool
	run := func(f func() error) func(*cobra.Command, []string) error {
		return func(*cobra.Command, []string) error { return f() }
	}
	c := &cobra.Command{
		Use:   "agents",
		Short: "list the defined agents, show what one may do, check files",
		Long: `Reads the definitions in agents.d as a daemon that started now would. It needs no
daemon. Without a subcommand it lists the agents.

Exit status: 0 every definition loads, 1 one does not, 2 bad usage.`,
		Args: args(cobra.NoArgs),
		RunE: run(func() error { return a.listAgents(asJSON) }),
	}
	list := &cobra.Command{
		Use:   "list",
		Short: "list the agents and the definitions that do not load",
		Args:  args(cobra.NoArgs),
		RunE:  run(func() error { return a.listAgents(asJSON) }),
	}
	show := &cobra.Command{
		Use:               "show AGENT",
		Short:             "show what an agent may do, and by which rules",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.complete,
		RunE:              func(_ *cobra.Command, words []string) error { return a.showAgent(words[0], asJSON) },
	}
	check := &cobra.Command{
		Use:   "check [FILE...]",
		Short: "report errors and warnings in definitions",
		Long: `Checks files as if they were in agents.d, or in extensions.d if their name ends in
.yaml, .yml or .json, together with the files there. Without arguments it checks
all files there. It prints one line for each error and each warning. A warning is a
list for which the agent has no tool, or a name of something that was removed since
a daemon loaded the file.

${VAR} is read from the environment of this command, not of the daemon.

Exit status: 0 all files would load, 1 one would not, 2 bad usage.`,
		RunE: func(_ *cobra.Command, files []string) error { return a.checkFiles(files) },
	}
	for _, c := range []*cobra.Command{c, list, show} {
		c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	}
	c.AddCommand(list, show, check, a.importCmd())
	return c
}

// listed is an agent in the list, or a file without an agent that does not load.
type listed struct {
	Agent       scope.ID `json:"agent,omitempty"`
	Description string   `json:"description,omitempty"`
	DisplayName string   `json:"display_name,omitempty"`
	Loaded      bool     `json:"loaded"`
	Error       string   `json:"error,omitempty"`
	Warnings    []string `json:"warnings,omitempty"`
}

func (a *app) listAgents(asJSON bool) error {
	p, err := a.paths()
	if err != nil {
		return err
	}
	all, errs, err := load(p)
	if err != nil {
		return err
	}
	rows := []listed{}
	for _, id := range slices.Sorted(maps.Keys(all.Agents)) {
		row := listed{Agent: id, Description: all.Agents[id].Description, DisplayName: all.Agents[id].DisplayName, Loaded: true}
		for _, err := range all.Warnings {
			if of, ok := errors.AsType[*fields.FileError](err); ok && of.Agent == id {
				row.Warnings = append(row.Warnings, err.Error())
			}
		}
		rows = append(rows, row)
	}
	for _, err := range errs {
		row := listed{Error: err.Error()}
		if bad, ok := errors.AsType[*fields.FileError](err); ok {
			row.Agent = bad.Agent
		}
		rows = append(rows, row)
	}
	slices.SortStableFunc(rows, func(x, y listed) int { return strings.Compare(string(x.Agent), string(y.Agent)) })
	if asJSON {
		return errors.Join(a.printJSON(rows), notAll(errs))
	}
	for _, err := range all.Warnings {
		fmt.Fprintf(a.err, "scopefs: warning: %s\n", printable.Text(err.Error()))
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "AGENT\tSTATE\tDESCRIPTION")
	for _, r := range rows {
		state, about := "ok", r.Description
		if !r.Loaded {
			state, about = "not loaded", r.Error
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", cmp.Or(printable.Text(string(r.Agent)), "-"), state, printable.Text(about))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return notAll(errs)
}

// notAll returns an error with the exit status for definitions that do not load.
func notAll(errs []error) error {
	if len(errs) > 0 {
		return &exitError{code: exitFailed}
	}
	return nil
}

func (a *app) printJSON(v any) error { return a.printAsJSON(v, "  ") }

// printLine prints v as a line of JSON.
func (a *app) printLine(v any) error { return a.printAsJSON(v, "") }

// printAsJSON is the one printer of JSON: no text of an agent in it controls a terminal.
func (a *app) printAsJSON(v any, indent string) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	err := enc.Encode(v)
	if err == nil {
		_, err = a.out.Write(tools.PlainJSON(text.Bytes()))
	}
	return err
}

// checkFiles prints the errors and warnings of files, or of all definitions.
func (a *app) checkFiles(files []string) error {
	p, err := a.paths()
	if err != nil {
		return err
	}
	all, errs, err := load(p)
	if err != nil {
		return err
	}
	warnings := all.Warnings
	if len(files) > 0 {
		errs, warnings = nil, nil
	}
	for _, name := range files {
		text, err := readFile(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		wrong, odd := all.Check(name, text)
		errs, warnings = append(errs, wrong...), append(warnings, odd...)
	}
	for _, err := range errs {
		fmt.Fprintln(a.out, printable.Text(err.Error()))
	}
	for _, err := range warnings {
		fmt.Fprintln(a.out, "warning: "+printable.Text(err.Error()))
	}
	return notAll(errs)
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

func (a *app) promptCmd() *cobra.Command {
	var environment string
	var scopes []string
	c := &cobra.Command{
		Use:   "prompt AGENT [--context FILE]",
		Short: "print an agent's system prompt, and what it may use",
		Long: `Prints the text of an agent's definition, and below it, in a <scope> block, the
skills, MCP servers, members and contexts that it may use, and what its policy and
limits say.

--context names a file with a JSON array of messages. The prompt has those of the
scopes that the agent may see (its scopes:), or of --scopes, as a runner hands them
to a model.`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.complete,
		RunE: func(c *cobra.Command, words []string) error {
			_, env, err := readContext(environment)
			if err != nil {
				return err
			}
			agent, err := a.agentNamed(words[0])
			if err != nil {
				return err
			}
			text := agent.Grants.Prompt()
			if env != nil {
				given, err := promptContext(agent.Grants, env, scopes, c.Flags().Changed("scopes"))
				if err != nil {
					return &exitError{exitUsage, err}
				}
				text += "\n\n" + strings.TrimSuffix(given.Text(string(agent.Name)), "\n")
			}
			_, err = fmt.Fprintln(a.out, text)
			return err
		},
	}
	c.Flags().StringVar(&environment, "context", "", "a file with the context, a JSON array of messages")
	c.Flags().StringSliceVar(&scopes, "scopes", nil, "of --context, these scopes")
	return c
}

// promptContext selects what an agent sees of an environment: the scopes in asked, or
// all that it may see.
func promptContext(g *agents.Grants, env *scoped.Environment, asked []string, said bool) (scoped.Scoped, error) {
	may := func(name string) bool { return g.Context(name).Allow }
	spec := scoped.Spec{Any: true}
	if names, fixed := g.Contexts(); fixed {
		spec = scoped.Spec{Names: slices.Sorted(slices.Values(names)), Fixed: true}
	}
	if !said && !spec.Fixed {
		asked = slices.DeleteFunc(env.Scopes(), func(name string) bool { return !may(name) })
	}
	for _, name := range asked {
		if !scoped.IsName(name) {
			return scoped.Scoped{}, fmt.Errorf("--scopes: %q is no name of a scope", name)
		}
	}
	asked = slices.Compact(slices.Sorted(slices.Values(asked)))
	given, bad := scoped.Select(env, spec, may, scoped.Envelope{Scopes: asked})
	if bad != nil {
		return given, errors.New(bad.Error())
	}
	return given, nil
}

// agentNamed loads the agent with the given name.
func (a *app) agentNamed(name string) (*agents.Agent, error) {
	p, err := a.paths()
	if err != nil {
		return nil, err
	}
	id, err := scope.ParseID(name)
	if err != nil {
		return nil, err
	}
	return agentOf(p, id)
}
