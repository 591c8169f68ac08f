package front

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/caller"
	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/command"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/terminal"
	"github.com/scopefs/scopefs/internal/terminal/question"
	"github.com/scopefs/scopefs/internal/version"
)

func (f *front) addCall(root *cobra.Command) {
	var o command.Call
	root.AddCommand(o.Command(func(c *cobra.Command, words []string) error {
		if o.List || len(words) == 0 || strings.HasSuffix(words[0], ".json") || words[0] == "-" || o.Args != "" ||
			o.Context != "" || os.Getenv("TRACEPARENT") != "" {
			return errLeft
		}
		return f.call(c.Context(), words[0], words[1:], &o)
	}))
}

// call makes one call. What is read from files and from standard input is left.
func (f *front) call(ctx context.Context, tool string, words []string, o *command.Call) error {
	arguments, err := command.Arguments(map[string]json.RawMessage{}, words)
	if err != nil {
		return errLeft
	}
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	conn, pulse, err := f.tools(ctx, o.Agent, client.Hello{Profile: o.Profile, Dir: o.Dir, Once: true}, false)
	if err != nil {
		return err
	}
	defer conn.Close()
	go pulse.Watch(ctx, leave)
	session, err := caller.Open(ctx, conn, version.Version, question.Asker(terminal.Input(os.Stdin), os.Stderr))
	if errors.Is(err, caller.ErrUnheard) {
		return errLeft
	}
	if err == nil {
		defer session.Close()
		var result caller.Result
		if result, err = session.Call(ctx, tool, arguments); err == nil {
			if id := result.Background(); id != "" {
				fmt.Fprintln(os.Stderr, command.Ends(printable.Text(id)))
			}
			err = o.Print(os.Stdout, os.Stderr, result)
		}
	}
	return o.Failed(err)
}

// tools connects to the tools of an agent or of a task. What is wrong with the first connection, scopefsd says, or starts a daemon.
func (f *front) tools(ctx context.Context, name string, hello client.Hello,
	again bool) (conn *net.UnixConn, pulse *client.Pulse, err error) {
	switch hello.Profile {
	case "", "claude", "anthropic-editor", "mcp-fs":
	default:
		return nil, nil, errLeft
	}
	if strings.Contains(hello.Dir, "\n") {
		return nil, nil, errLeft
	}
	if task := os.Getenv(client.TaskEnv); name == "" && task != "" {
		conn, err = client.TaskTools(ctx, task, hello)
		return conn, client.NewPulse(task), err
	}
	p, _, id, err := f.agent(name, false)
	if err != nil {
		return nil, nil, err
	}
	if conn, err = client.Tools(ctx, p, id, hello); err != nil && !again {
		err = errLeft
	}
	if err != nil {
		return nil, nil, err
	}
	return conn, client.NewPulse(p.ToolSocket(string(id))), nil
}
