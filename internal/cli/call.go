package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/batch"
	"github.com/scopefs/scopefs/internal/command"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/nearest"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/terminal"
	"github.com/scopefs/scopefs/internal/terminal/question"
	"github.com/scopefs/scopefs/internal/toolbox"
	"github.com/scopefs/scopefs/internal/version"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/mcp"
)

// callOptions are the flags of call.
type callOptions struct {
	agent, profile, dir, args, context string
	list, json, status                 bool
	parallel                           int
}

func (a *app) callCmd() *cobra.Command {
	var o callOptions
	c := &cobra.Command{
		Use:   "call TOOL [NAME=TEXT|NAME:=JSON...]|FILE.json --agent AGENT|--dir DIR",
		Short: "call one of an agent's tools",
		Long: `Calls a tool with the agent's rights and prints the result.
Arguments are NAME=TEXT and NAME:=JSON, or --args with a JSON object; --args - reads
it from standard input. --list lists the tools that the agent may call, and
scopefs call TOOL --help --agent AGENT shows the arguments of one.

FILE.json, or - for standard input, holds a call, {"_tool": TOOL, "_scopes": [...],
"_instance": ..., parameters...}, or {"calls": [...]}. scopefs makes --parallel of them
at a time and prints a line of JSON for each, in their order: {"call": N, "tool":
TOOL, "result": ...} or {"call": N, "tool": TOOL, "error": {code, message, path}}.

--context names a file with a JSON array of messages, each with a type. A call sees
of them what its _scopes select: see docs/context.md.

ask_user asks on the terminal, if standard input and standard error are one. An
empty line or the end of input (^D) declines to answer.

Exit status: 0 success, 1 the tool failed or was refused (standard error has the
error; of a file of calls: some failed), 2 bad usage. A command of bash that fails is a result: standard error has
its exit status. With --exit-status scopefs exits with it, as run does: 124 for a
timeout, 128+N for signal N, 125 if scopefs or the tool failed.`,
		Args: func(c *cobra.Command, words []string) error {
			if o.list {
				return exit.Args(cobra.NoArgs)(c, words)
			}
			return exit.Args(cobra.MinimumNArgs(1))(c, words)
		},
		RunE: func(c *cobra.Command, words []string) error {
			hello := api.Hello{Profile: o.profile, Dir: o.dir}
			var err error
			if hello.Context, _, err = readContext(o.context); err != nil {
				return err
			}
			switch {
			case o.list:
				return a.listTools(c.Context(), hello, o)
			case batch.Is(words):
				return a.callFile(c.Context(), hello, words[0], o)
			}
			return a.call(c.Context(), hello, words[0], words[1:], o)
		},
	}
	help := c.HelpFunc()
	c.SetHelpFunc(func(c *cobra.Command, words []string) {
		if tool := c.Flags().Arg(0); tool != "" {
			a.helped = a.toolHelp(c.Context(), tool, o)
			return
		}
		help(c, words)
	})
	a.agentFlag(c, &o.agent)
	f := c.Flags()
	f.StringVar(&o.profile, "profile", "", "names of tools: claude, anthropic-editor or mcp-fs")
	f.StringVarP(&o.dir, "chdir", "C", "", "start commands in this directory of the view: the cwd of bash, unless a call has one")
	f.StringVar(&o.args, "args", "", "arguments as a JSON object; - reads standard input")
	f.StringVar(&o.context, "context", "", "a file with the context of the calls, a JSON array of messages")
	f.IntVar(&o.parallel, "parallel", 8, "calls of a file that run at the same time, 1 to 32")
	f.BoolVar(&o.list, "list", false, "list the tools")
	f.BoolVar(&o.json, "json", false, "print JSON")
	f.BoolVar(&o.status, "exit-status", false, "exit with the status of the command that bash runs")
	return c
}

// call makes one call.
func (a *app) call(ctx context.Context, hello api.Hello, tool string, words []string, o callOptions) error {
	arguments, err := toolbox.Arguments(a.in, o.args, words)
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	return a.withTools(ctx, hello, o, func(ctx context.Context, client *toolbox.Client) error {
		result, err := client.Call(ctx, tool, arguments)
		if err != nil {
			return err
		}
		if id := toolbox.Background(result); id != "" {
			fmt.Fprintf(a.err, "scopefs: %s ends now, with the session of this command: "+
				"use the bash tool of scopefs mcp, or scopefs run\n", printable.Text(id))
		}
		return a.printResult(result, o)
	})
}

// callFile makes the calls of a file.
func (a *app) callFile(ctx context.Context, hello api.Hello, name string, o callOptions) error {
	calls, err := batch.Read(name, a.in)
	switch {
	case err != nil:
		return exit.With(exit.Usage, err)
	case o.parallel < 1 || o.parallel > batch.MaxParallel:
		return exit.Usagef("--parallel: want 1 to %d", batch.MaxParallel)
	case hello.Context != nil && calls.Context != nil:
		return exit.Usagef("%s has a context, and so has --context: give one", name)
	case calls.Context != nil:
		hello.Context = calls.Context
	}
	return a.withTools(ctx, hello, o, func(ctx context.Context, client *toolbox.Client) error {
		return calls.Run(ctx, client.Client, o.parallel, a.out)
	})
}

// withTools runs f with a client of an agent's tools. With --exit-status, an error that is not a command's exit has the
// status 125.
func (a *app) withTools(ctx context.Context, hello api.Hello, o callOptions, f func(context.Context, *toolbox.Client) error) error {
	hello.Once = true
	t, err := a.toolbox(o.agent, hello)
	if err == nil {
		err = t.Use(ctx, version.Version, question.Asker(a.in, a.err), f)
	}
	if _, ok := errors.AsType[*commandError](err); !ok && err != nil && o.status {
		return exit.With(command.RunFailed, err)
	}
	return err
}

// listTools lists the tools that the agent may call.
func (a *app) listTools(ctx context.Context, hello api.Hello, o callOptions) error {
	return a.withTools(ctx, hello, o, func(ctx context.Context, client *toolbox.Client) error {
		all, starting, err := client.List(ctx)
		if err != nil {
			return err
		}
		for _, name := range starting {
			fmt.Fprintf(a.err, "MCP server %s is still starting: its tools are not listed yet\n", printable.Text(name))
		}
		return a.print(report.Tools(all), o.json)
	})
}

// toolHelp prints a tool's description and arguments.
func (a *app) toolHelp(ctx context.Context, name string, o callOptions) error {
	o.status = false
	return a.withTools(ctx, api.Hello{Profile: o.profile}, o, func(ctx context.Context, client *toolbox.Client) error {
		all, _, err := client.List(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(t mcp.Listed) bool { return t.Named(name) })
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
		return a.print(report.Tool(all[i]), o.json)
	})
}

// commandError is the exit status of a failed command.
type commandError struct{ status string }

func (e *commandError) Error() string { return e.status }

// ending returns a commandError if the result is of a failed command. With status,
// a result without an exit status is an error.
func ending(r mcp.Result, status bool) error {
	var said struct {
		Running  bool `json:"running"`
		ExitCode *int `json:"exit_code"`
		TimedOut bool `json:"timed_out"`
	}
	// The results of other tools do not have these fields.
	_ = json.Unmarshal(r.Structured, &said)
	code := said.ExitCode
	switch {
	case code == nil && status && !said.Running:
		return errors.New("the result has no exit status: --exit-status is for bash")
	case code == nil || *code == 0:
		return nil
	case !status:
		return &commandError{fmt.Sprintf("the command ended with exit status %d; --exit-status ends with it", *code)}
	case said.TimedOut:
		return exit.With(command.TimedOut, &commandError{"the command timed out"})
	}
	return exit.With(*code, &commandError{fmt.Sprintf("the command ended with exit status %d", *code)})
}

// printResult prints the result of a call, or returns its error.
func (a *app) printResult(r mcp.Result, o callOptions) error {
	switch {
	case r.Failed:
		return exit.With(exit.Failed, errors.New(r.Text))
	case o.json && r.Structured != nil:
		fmt.Fprintln(a.out, string(tools.PlainJSON(r.Structured)))
	case o.json:
		return report.JSON(a.out, map[string]string{"text": r.Text})
	default:
		text := r.Text
		if terminal.Is(a.out) {
			text = printable.Lines(text)
		}
		fmt.Fprint(a.out, text)
		if !strings.HasSuffix(r.Text, "\n") {
			fmt.Fprintln(a.out)
		}
	}
	err := ending(r, o.status)
	if said, ok := errors.AsType[*commandError](err); ok && !o.status {
		fmt.Fprintf(a.err, "scopefs: %s\n", said)
		return nil
	}
	return err
}
