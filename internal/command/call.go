package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/caller"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/printable/plainjson"
	"github.com/scopefs/scopefs/internal/terminal"
)

// Call are the flags of call.
type Call struct {
	Agent, Profile, Dir, Args, Context string
	List, JSON, Status                 bool
	Parallel                           int
}

// Command returns call, which do does with its words.
func (o *Call) Command(do func(c *cobra.Command, words []string) error) *cobra.Command {
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
			if o.List {
				return exit.Args(cobra.NoArgs)(c, words)
			}
			return exit.Args(cobra.MinimumNArgs(1))(c, words)
		},
		RunE: do,
	}
	AgentFlag(c, &o.Agent)
	f := c.Flags()
	f.StringVar(&o.Profile, "profile", "", "names of tools: claude, anthropic-editor or mcp-fs")
	f.StringVarP(&o.Dir, "chdir", "C", "", "start commands in this directory of the view: the cwd of bash, unless a call has one")
	f.StringVar(&o.Args, "args", "", "arguments as a JSON object; - reads standard input")
	f.StringVar(&o.Context, "context", "", "a file with the context of the calls, a JSON array of messages")
	f.IntVar(&o.Parallel, "parallel", 8, "calls of a file that run at the same time, 1 to 32")
	f.BoolVar(&o.List, "list", false, "list the tools")
	f.BoolVar(&o.JSON, "json", false, "print JSON")
	f.BoolVar(&o.Status, "exit-status", false, "exit with the status of the command that bash runs")
	return c
}

// Arguments adds the NAME=TEXT and NAME:=JSON words to an object of arguments, and returns its JSON.
func Arguments(object map[string]json.RawMessage, words []string) (json.RawMessage, error) {
	for _, word := range words {
		k, v, ok := strings.Cut(word, "=")
		value, err := json.Marshal(v)
		if name, raw := strings.CutSuffix(k, ":"); raw {
			k, value = name, json.RawMessage(v)
		}
		if !ok || k == "" || err != nil || !json.Valid(value) {
			return nil, fmt.Errorf("%q: write NAME=TEXT or NAME:=JSON: scopefs call TOOL --help has the names", word)
		}
		if _, twice := object[k]; twice {
			return nil, fmt.Errorf("%s is given twice: give it once, also beside --args", k)
		}
		object[k] = value
	}
	return json.Marshal(object)
}

// Failed returns the error of call: with --exit-status, an error that is not a command's exit has the status 125.
func (o *Call) Failed(err error) error {
	if _, ok := errors.AsType[*FailedError](err); !ok && err != nil && o.Status {
		return exit.With(RunFailed, err)
	}
	return err
}

// Ends says that a command in the background ends.
func Ends(id string) string {
	return fmt.Sprintf("scopefs: %s ends now, with the session of this command: use the bash tool of scopefs mcp, or scopefs run", id)
}

// FailedError is the exit status of a failed command.
type FailedError struct{ status string }

func (e *FailedError) Error() string { return e.status }

// ending returns a FailedError if the result is of a failed command. With status,
// a result without an exit status is an error.
func ending(r caller.Result, status bool) error {
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
		return &FailedError{fmt.Sprintf("the command ended with exit status %d; --exit-status ends with it", *code)}
	case said.TimedOut:
		return exit.With(TimedOut, &FailedError{"the command timed out"})
	}
	return exit.With(*code, &FailedError{fmt.Sprintf("the command ended with exit status %d", *code)})
}

// Print prints the result of a call, or returns its error.
func (o *Call) Print(stdout, stderr io.Writer, r caller.Result) error {
	switch {
	case r.Failed:
		return exit.With(exit.Failed, errors.New(r.Text))
	case o.JSON && r.Structured != nil:
		fmt.Fprintln(stdout, string(plainjson.Text(r.Structured)))
	case o.JSON:
		return plainjson.Write(stdout, map[string]string{"text": r.Text}, "  ")
	default:
		text := r.Text
		if terminal.Is(stdout) {
			text = printable.Lines(text)
		}
		fmt.Fprint(stdout, text)
		if !strings.HasSuffix(r.Text, "\n") {
			fmt.Fprintln(stdout)
		}
	}
	for line := range strings.Lines(r.Effects) {
		fmt.Fprint(stderr, "scopefs: ", line)
	}
	err := ending(r, o.Status)
	if said, ok := errors.AsType[*FailedError](err); ok && !o.Status {
		fmt.Fprintf(stderr, "scopefs: %s\n", said)
		return nil
	}
	return err
}
