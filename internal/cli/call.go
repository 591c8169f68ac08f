package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/batch"
	"github.com/scopefs/scopefs/internal/caller"
	"github.com/scopefs/scopefs/internal/command"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/nearest"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/terminal/question"
	"github.com/scopefs/scopefs/internal/toolbox"
	"github.com/scopefs/scopefs/internal/version"
)

func (a *app) callCmd() *cobra.Command {
	var o command.Call
	c := o.Command(func(c *cobra.Command, words []string) error {
		hello := api.Hello{Profile: o.Profile, Dir: o.Dir, FullSchemas: o.List}
		var err error
		if hello.Context, _, err = readContext(o.Context); err != nil {
			return err
		}
		switch {
		case o.List:
			return a.listTools(c.Context(), hello, o)
		case batch.Is(words):
			return a.callFile(c.Context(), hello, words[0], o)
		}
		return a.call(c.Context(), hello, words[0], words[1:], o)
	})
	help := c.HelpFunc()
	c.SetHelpFunc(func(c *cobra.Command, words []string) {
		if tool := c.Flags().Arg(0); tool != "" {
			a.helped = a.toolHelp(c.Context(), tool, o)
			return
		}
		help(c, words)
	})
	c.ValidArgsFunction = a.completeTools
	a.completeAgent(c)
	return c
}

// call makes one call.
func (a *app) call(ctx context.Context, hello api.Hello, tool string, words []string, o command.Call) error {
	arguments, err := toolbox.Arguments(a.in, o.Args, words)
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	return a.withTools(ctx, hello, o, func(ctx context.Context, client *caller.Session) error {
		result, err := client.Call(ctx, tool, arguments)
		if err != nil {
			return err
		}
		if id := result.Background(); id != "" {
			fmt.Fprintln(a.err, command.Ends(printable.Text(id)))
		}
		return o.Print(a.out, a.err, result)
	})
}

// callFile makes the calls of a file.
func (a *app) callFile(ctx context.Context, hello api.Hello, name string, o command.Call) error {
	calls, err := batch.Read(name, a.in)
	switch {
	case err != nil:
		return exit.With(exit.Usage, err)
	case o.Parallel < 1 || o.Parallel > batch.MaxParallel:
		return exit.Usagef("--parallel: want 1 to %d", batch.MaxParallel)
	case hello.Context != nil && calls.Context != nil:
		return exit.Usagef("%s has a context, and so has --context: give one", name)
	case calls.Context != nil:
		hello.Context = calls.Context
	}
	return a.withTools(ctx, hello, o, func(ctx context.Context, client *caller.Session) error {
		return calls.Run(ctx, client.Client, o.Parallel, a.out)
	})
}

// withTools runs f with a client of an agent's tools. With --exit-status, an error that is not a command's exit has the
// status 125.
func (a *app) withTools(ctx context.Context, hello api.Hello, o command.Call, f func(context.Context, *caller.Session) error) error {
	hello.Once = true
	t, err := a.toolbox(o.Agent, hello)
	if err == nil {
		err = t.Use(ctx, version.Version, question.Asker(a.in, a.err), f)
	}
	return o.Failed(err)
}

// listTools lists the tools that the agent may call.
func (a *app) listTools(ctx context.Context, hello api.Hello, o command.Call) error {
	return a.withTools(ctx, hello, o, func(ctx context.Context, client *caller.Session) error {
		all, starting, err := client.List(ctx)
		if err != nil {
			return err
		}
		for _, name := range starting {
			fmt.Fprintf(a.err, "MCP server %s is still starting: its tools are not listed yet\n", printable.Text(name))
		}
		return a.print(report.Tools(all), o.JSON)
	})
}

// toolHelp prints a tool's description and arguments.
func (a *app) toolHelp(ctx context.Context, name string, o command.Call) error {
	o.Status = false
	return a.withTools(ctx, api.Hello{Profile: o.Profile, FullSchemas: true}, o, func(ctx context.Context, client *caller.Session) error {
		all, _, err := client.List(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(t caller.Listed) bool { return t.Named(name) })
		if i < 0 {
			var names []string
			for _, t := range all {
				names = append(names, t.Name)
			}
			hint := "--list lists the tools"
			if near := nearest.Of(name, names); near != "" {
				hint = fmt.Sprintf("did you mean %s?", near)
			}
			return exit.Usagef("there is no tool %q here: %s", name, hint)
		}
		return a.print(report.Tool(all[i]), o.JSON)
	})
}
