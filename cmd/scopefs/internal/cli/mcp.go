package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/cmd/scopefs/internal/daemon"
	"github.com/scopefs/scopefs/scope"
)

func (a *app) mcpCmd() *cobra.Command {
	var name, profile string
	c := &cobra.Command{
		Use:   "mcp --agent AGENT [--profile NAME]",
		Short: "offer an agent's tools to an MCP client on standard input and output",
		Long: `Speaks the Model Context Protocol on standard input and output: the tools that
the agent may use, which run in a sandbox of this client's own on the agent's view.
With a daemon for the base it is one of its clients (RUN/mcp/AGENT.sock); without
one, scopefs mounts the view for this client alone, and calls that the operator
would have to approve are denied.

--profile offers the tools under the names that a client or model knows:
claude (Read, Edit, Bash...), anthropic-editor (str_replace_based_edit_tool), or
mcp-fs (as @modelcontextprotocol/server-filesystem).

Exit status: 0 when the client has gone, 1 it failed, 2 it was asked wrongly.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			conn, end, err := a.tools(c.Context(), name, profile)
			if err != nil {
				return err
			}
			defer end()
			return a.relay(conn)
		},
	}
	a.agentFlag(c, &name)
	c.Flags().StringVar(&profile, "profile", "", "names of tools: claude, anthropic-editor or mcp-fs")
	return c
}

// agentFlag adds --agent.
func (a *app) agentFlag(c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "agent", os.Getenv("SCOPEFS_AGENT"), "whose (SCOPEFS_AGENT)")
	_ = c.RegisterFlagCompletionFunc("agent", func(c *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return a.complete(c, nil, word)
	})
}

// tools connects with an agent's tools, and starts a daemon for that where none
// runs. end ends both.
func (a *app) tools(ctx context.Context, name, profile string) (*net.UnixConn, func(), error) {
	p, err := a.paths()
	if err != nil {
		return nil, nil, err
	}
	if name == "" {
		return nil, nil, &exitError{exitUsage, errors.New("whose tools: give --agent AGENT")}
	}
	id, err := scope.ParseID(name)
	if err != nil {
		return nil, nil, err
	}
	switch profile {
	case "", "claude", "anthropic-editor", "mcp-fs":
	default:
		return nil, nil, &exitError{exitUsage, fmt.Errorf("unknown profile %q: want claude, anthropic-editor or mcp-fs", profile)}
	}
	end := func() {}
	conn, err := daemon.Tools(ctx, p, id, profile)
	if errors.Is(err, daemon.ErrNoDaemon) {
		if p, end, err = a.embedded(ctx, p, id, a.err); err != nil {
			return nil, nil, err
		}
		if conn, err = daemon.Tools(ctx, p, id, profile); err != nil {
			end()
		}
	}
	if err != nil {
		return nil, nil, err
	}
	return conn, func() { conn.Close(); end() }, nil
}

// relay passes messages on, both ways, until one side has gone. It reads and
// writes by blocking system calls: a thread that the kernel wakes costs a message
// less than one that the runtime's poller has to.
func (a *app) relay(conn *net.UnixConn) error {
	f, err := conn.File()
	if err != nil {
		return err
	}
	defer f.Close()
	var over atomic.Bool
	go func() {
		_, _ = io.Copy(struct{ io.Writer }{f}, a.in)
		over.Store(true)
		_ = conn.CloseWrite()
	}()
	r := &refusing{Reader: f}
	if _, err = io.Copy(struct{ io.Writer }{a.out}, r); err == nil && !over.Load() {
		err = errors.New("the daemon has ended the connection; its log says why")
	}
	return err
}

// refusing reads what a daemon says. When that is why it does not speak the
// protocol, that is the error.
type refusing struct {
	io.Reader
	begun bool
	why   error
}

func (r *refusing) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if !r.begun && n > 0 {
		r.begun = true
		if text, ok := strings.CutPrefix(string(b[:n]), "scopefs: "); ok {
			r.why = errors.New(strings.TrimSpace(text))
		}
	}
	if r.why != nil {
		return 0, r.why
	}
	return n, err
}
