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

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/mcp"
)

func (a *app) callCmd() *cobra.Command {
	var name, profile, text string
	var list, asJSON bool
	c := &cobra.Command{
		Use:   "call TOOL [NAME=TEXT|NAME:=JSON...] --agent AGENT",
		Short: "call one of an agent's tools",
		Long: `Calls a tool as the agent would, through the same door, and prints what it says.
Arguments are NAME=TEXT and NAME:=JSON, or --args with a JSON object; --args - reads
it from standard input. --list lists the tools that the agent may call.

Exit status: 0 done, 1 the tool failed or was refused (told on standard error), 2
asked wrongly.`,
		Args: func(c *cobra.Command, words []string) error {
			if list {
				return args(cobra.NoArgs)(c, words)
			}
			return args(cobra.MinimumNArgs(1))(c, words)
		},
		RunE: func(c *cobra.Command, words []string) error {
			var arguments json.RawMessage
			var err error
			if !list {
				if arguments, err = a.arguments(text, words[1:]); err != nil {
					return &exitError{exitUsage, err}
				}
			}
			t, err := a.toolbox(name, profile)
			if err != nil {
				return err
			}
			defer t.close()
			ctx, leave := context.WithCancelCause(c.Context())
			defer leave(nil)
			r, client, err := t.dial(ctx, leave)
			if err != nil {
				return err
			}
			defer client.Close()
			if list {
				return r.explain(ctx, a.listTools(ctx, client, asJSON))
			}
			result, err := client.Call(ctx, words[0], arguments)
			if err != nil {
				return r.explain(ctx, err)
			}
			return a.printResult(result, asJSON)
		},
	}
	a.agentFlag(c, &name)
	c.Flags().StringVar(&profile, "profile", "", "names of tools: claude, anthropic-editor or mcp-fs")
	c.Flags().StringVar(&text, "args", "", "arguments as a JSON object; - reads standard input")
	c.Flags().BoolVar(&list, "list", false, "list the tools")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// dial connects with the tools and begins to speak. leave is called when the
// daemon does not answer any more.
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
	}{r, conn}, Version)
	if err != nil {
		return nil, nil, r.explain(ctx, err)
	}
	return r, client, nil
}

// refusing reads what a daemon says, and notes why it ends the connection.
type refusing struct {
	io.Reader
	begun bool

	mu    sync.Mutex
	why   error // it does not speak the protocol
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

// explain returns why a request has no answer.
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

// arguments makes an object of what was given.
func (a *app) arguments(text string, words []string) (json.RawMessage, error) {
	object := map[string]json.RawMessage{}
	if text == "-" {
		all, err := io.ReadAll(io.LimitReader(a.in, 16<<20))
		if err != nil {
			return nil, err
		}
		text = string(all)
	}
	if text != "" {
		if err := json.Unmarshal([]byte(text), &object); err != nil {
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
	all, err := client.List(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return a.printJSON(all)
	}
	for _, t := range all {
		first, _, _ := strings.Cut(t.About, "\n")
		fmt.Fprintf(a.out, "%-20s %s\n", printable(t.Name), printable(first))
	}
	return nil
}

// onTerminal reports whether a stream is read by a person.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// steady escapes what steers a terminal, but line ends and tabs.
func steady(text string) string {
	var b strings.Builder
	for line := range strings.SplitAfterSeq(text, "\n") {
		line, end := strings.CutSuffix(line, "\n")
		for i, part := range strings.Split(line, "\t") {
			if i > 0 {
				b.WriteByte('\t')
			}
			b.WriteString(printable(part))
		}
		if end {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func (a *app) printResult(r mcp.Result, asJSON bool) error {
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
	return nil
}
