package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/mcp"
)

func (a *app) callCmd() *cobra.Command {
	var name, profile, dir, text, environment string
	var list, asJSON, status bool
	parallel := 8
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
			if list {
				return args(cobra.NoArgs)(c, words)
			}
			return args(cobra.MinimumNArgs(1))(c, words)
		},
		RunE: func(c *cobra.Command, words []string) error {
			env, _, err := readContext(environment)
			if err != nil {
				return err
			}
			if !list && isBatch(words) {
				calls, err := a.readBatch(words[0])
				if calls.parallel = parallel; err == nil && (parallel < 1 || parallel > maxParallel) {
					err = fmt.Errorf("--parallel: want 1 to %d", maxParallel)
				}
				if err == nil && env != nil && calls.context != nil {
					err = fmt.Errorf("%s has a context, and so has --context: give one", words[0])
				}
				if err != nil {
					return &exitError{exitUsage, err}
				}
				if calls.context != nil {
					env = calls.context
				}
				return a.withTools(c.Context(), name, api.Hello{Profile: profile, Dir: dir, Context: env}, func(ctx context.Context, client *mcp.Client) error {
					return calls.run(ctx, a, client)
				}, status)
			}
			var arguments json.RawMessage
			if !list {
				if arguments, err = a.arguments(text, words[1:]); err != nil {
					return &exitError{exitUsage, err}
				}
			}
			return a.withTools(c.Context(), name, api.Hello{Profile: profile, Dir: dir, Context: env}, func(ctx context.Context, client *mcp.Client) error {
				if list {
					return a.listTools(ctx, client, asJSON)
				}
				result, err := client.Call(ctx, words[0], arguments)
				if err != nil {
					return err
				}
				if id := background(result); id != "" {
					fmt.Fprintf(a.err, "scopefs: %s ends now, with the session of this command: use the bash tool of scopefs mcp, or scopefs run\n", printable.Text(id))
				}
				return a.printResult(result, asJSON, status)
			}, status)
		},
	}
	help := c.HelpFunc()
	c.SetHelpFunc(func(c *cobra.Command, words []string) {
		tool := c.Flags().Arg(0)
		if tool == "" {
			help(c, words)
			return
		}
		a.helped = a.withTools(c.Context(), name, api.Hello{Profile: profile}, func(ctx context.Context, client *mcp.Client) error {
			return a.toolHelp(ctx, client, tool, asJSON)
		}, false)
	})
	a.agentFlag(c, &name)
	c.Flags().StringVar(&profile, "profile", "", "names of tools: claude, anthropic-editor or mcp-fs")
	c.Flags().StringVarP(&dir, "chdir", "C", "", "start commands in this directory of the view: the cwd of bash, unless a call has one")
	c.Flags().StringVar(&text, "args", "", "arguments as a JSON object; - reads standard input")
	c.Flags().StringVar(&environment, "context", "", "a file with the context of the calls, a JSON array of messages")
	c.Flags().IntVar(&parallel, "parallel", parallel, "calls of a file that run at the same time, 1 to 32")
	c.Flags().BoolVar(&list, "list", false, "list the tools")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&status, "exit-status", false, "exit with the status of the command that bash runs")
	return c
}

// withTools runs f with a client of an agent's tools. With status, an error that is
// not a command's exit gets the exit status 125.
func (a *app) withTools(ctx context.Context, name string, first api.Hello, f func(context.Context, *mcp.Client) error, status bool) error {
	err := func() error {
		first.Once = true
		t, err := a.toolbox(name, first)
		if err != nil {
			return err
		}
		defer t.close()
		ctx, leave := context.WithCancelCause(ctx)
		defer leave(nil)
		r, client, err := t.dial(ctx, leave)
		if err != nil {
			return err
		}
		defer client.Close()
		err = f(ctx, client)
		if _, ok := errors.AsType[*exitError](err); ok {
			return err
		}
		return r.explain(ctx, err)
	}()
	if _, ok := errors.AsType[*commandError](err); !ok && err != nil && status {
		return &exitError{exitRunFailed, err}
	}
	return err
}

// dial connects to the tools and initializes the MCP session. It calls leave when
// the daemon stops answering.
func (t *toolbox) dial(ctx context.Context, leave func(error)) (*refusing, *mcp.Client, error) {
	conn, err := t.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	go t.pulse().Watch(ctx, leave)
	r := &refusing{Reader: conn}
	client, err := mcp.Dial(ctx, struct {
		io.Reader
		io.WriteCloser
	}{r, conn}, Version, t.a.asker())
	if err != nil {
		return nil, nil, r.explain(ctx, err)
	}
	return r, client, nil
}

// refusing reads from a daemon and records a refusal in plain text, which is no
// message of the protocol.
type refusing struct {
	io.Reader
	begun bool

	mu    sync.Mutex
	why   error // the refusal
	ended bool
}

func (r *refusing) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.begun && n > 0 {
		r.begun = true
		if text, ok := strings.CutPrefix(string(b[:n]), "scopefs: "); ok {
			r.why = errors.New(strings.TrimSpace(text))
		}
	}
	if r.why != nil {
		return 0, r.why
	}
	r.ended = r.ended || err != nil
	return n, err
}

// explain returns the cause of a request without a response.
func (r *refusing) explain(ctx context.Context, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	const unknown = "whether the call had an effect is unknown"
	switch {
	case err == nil:
		return nil
	case r.why != nil:
		return r.why
	case ctx.Err() != nil:
		return fmt.Errorf("%w; %s", context.Cause(ctx), unknown)
	case r.ended:
		return fmt.Errorf("the daemon has ended the connection: %s; its log says why", unknown)
	}
	return err
}

// arguments returns the JSON object of --args and the NAME=TEXT and NAME:=JSON words.
func (a *app) arguments(text string, words []string) (json.RawMessage, error) {
	object := map[string]json.RawMessage{}
	if text == "-" {
		all, err := bounded.Read(a.in, 16<<20)
		if err != nil {
			return nil, err
		}
		text = string(all)
	}
	if text != "" {
		canonical, err := tools.Canonical(json.RawMessage(text))
		if err == nil {
			err = json.Unmarshal(canonical, &object)
		}
		if err != nil {
			return nil, fmt.Errorf("--args: want a JSON object: %w", err)
		}
	}
	for _, word := range words {
		k, v, ok := strings.Cut(word, "=")
		value, err := json.Marshal(v)
		if name, raw := strings.CutSuffix(k, ":"); raw {
			k, value = name, json.RawMessage(v)
		}
		if !ok || k == "" || err != nil || !json.Valid(value) {
			return nil, fmt.Errorf("%q: want NAME=TEXT or NAME:=JSON", word)
		}
		if _, twice := object[k]; twice {
			return nil, fmt.Errorf("%s is given twice: give it once, also beside --args", k)
		}
		object[k] = value
	}
	return json.Marshal(object)
}

func (a *app) listTools(ctx context.Context, client *mcp.Client, asJSON bool) error {
	all, starting, err := client.List(ctx)
	if err != nil {
		return err
	}
	for _, name := range starting {
		fmt.Fprintf(a.err, "MCP server %s is still starting: its tools are not listed yet\n", printable.Text(name))
	}
	if asJSON {
		return a.printJSON(all)
	}
	for _, t := range all {
		first, _, _ := strings.Cut(t.About, "\n")
		fmt.Fprintf(a.out, "%-20s %s\n", printable.Text(t.Name), printable.Text(first))
	}
	return nil
}

// onTerminal reports whether a stream is a terminal.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// steady escapes terminal control characters, except newlines and tabs.
func steady(text string) string {
	var b strings.Builder
	for line := range strings.SplitAfterSeq(text, "\n") {
		line, end := strings.CutSuffix(line, "\n")
		for i, part := range strings.Split(line, "\t") {
			if i > 0 {
				b.WriteByte('\t')
			}
			b.WriteString(printable.Text(part))
		}
		if end {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// background returns the process id of a result of bash whose command is running; "" for other results.
func background(r mcp.Result) string {
	var said struct {
		Running   bool   `json:"running"`
		ProcessID string `json:"process_id"`
	}
	if json.Unmarshal(r.Structured, &said) != nil || !said.Running {
		return ""
	}
	return said.ProcessID
}

// commandError is the exit status of a failed command.
type commandError struct{ status string }

func (e *commandError) Error() string { return e.status }

// ending returns a commandError if the result is of a failed command. With status,
// a result without an exit status is an error.
func ending(r mcp.Result, status bool) error {
	var command struct {
		Running  bool `json:"running"`
		ExitCode *int `json:"exit_code"`
		TimedOut bool `json:"timed_out"`
	}
	// The results of other tools do not have these fields.
	_ = json.Unmarshal(r.Structured, &command)
	code := command.ExitCode
	switch {
	case code == nil && status && !command.Running:
		return errors.New("the result has no exit status: --exit-status is for bash")
	case code == nil || *code == 0:
		return nil
	case !status:
		return &commandError{fmt.Sprintf("the command ended with exit status %d; --exit-status ends with it", *code)}
	case command.TimedOut:
		return &exitError{exitTimedOut, &commandError{"the command timed out"}}
	}
	return &exitError{*code, &commandError{fmt.Sprintf("the command ended with exit status %d", *code)}}
}

func (a *app) printResult(r mcp.Result, asJSON, status bool) error {
	switch {
	case r.Failed:
		return &exitError{exitFailed, errors.New(r.Text)}
	case asJSON && r.Structured != nil:
		fmt.Fprintln(a.out, string(tools.PlainJSON(r.Structured)))
	case asJSON:
		return a.printJSON(map[string]string{"text": r.Text})
	default:
		text := r.Text
		if onTerminal(a.out) {
			text = steady(text)
		}
		fmt.Fprint(a.out, text)
		if !strings.HasSuffix(r.Text, "\n") {
			fmt.Fprintln(a.out)
		}
	}
	err := ending(r, status)
	if said, ok := errors.AsType[*commandError](err); ok && !status {
		fmt.Fprintf(a.err, "scopefs: %s\n", said)
		return nil
	}
	return err
}
