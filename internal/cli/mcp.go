package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/bridge"
	"github.com/scopefs/scopefs/internal/clients"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/thread"
	"github.com/scopefs/scopefs/scope"
)

func (a *app) mcpCmd() *cobra.Command {
	var name, profile string
	var client installing
	c := &cobra.Command{
		Use:   "mcp --agent AGENT|--dir DIR [--profile NAME] [-C DIR] [--install PROGRAM]",
		Short: "offer an agent's tools to an MCP client on standard input and output",
		Long: `Serves the Model Context Protocol on standard input and output, with the tools that
the agent may use. They run in a sandbox for this client on the agent's view. If a
daemon runs for the base, scopefs connects to it (RUN/mcp/AGENT.sock). Otherwise it
mounts the view for this client alone, and denies calls that need the operator's
approval. With --dir the agent is that of a directory, as for scopefs run.

When the daemon restarts or is killed, scopefs mcp connects to the next one and the
session continues. Calls in flight fail with an error: their effect is unknown.
Without a daemon a call waits up to 10 seconds, and scopefs mcp up to a minute.

--profile offers the tools under the names that a client or model knows:
claude (Read, Edit, Bash...), anthropic-editor (str_replace_based_edit_tool), or
mcp-fs (as @modelcontextprotocol/server-filesystem).

--install writes the settings with which claude, codex, gemini or opencode starts this
command in a directory, and with which it leaves its own file and shell tools alone.
It prints the files that it wrote. --uninstall restores them. With these -C names the
directory of the settings; else it names the directory of the view in which commands start.

Exit status: 0 at the end of the client's input, 1 failure, 2 bad usage.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if client.install != "" || client.uninstall != "" {
				return a.settings(client, name)
			}
			thread.Coarse()
			t, err := a.toolbox(name, api.Hello{Profile: profile, Dir: client.dir})
			if err != nil {
				return err
			}
			return a.relay(c.Context(), t)
		},
	}
	a.agentFlag(c, &name)
	c.Flags().StringVar(&client.install, "install", "", "write the settings of this program: "+strings.Join(clients.Names(), ", "))
	c.Flags().StringVar(&client.uninstall, "uninstall", "", "restore the settings of this program")
	for _, flag := range []string{"install", "uninstall"} {
		_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(clients.Names(), cobra.ShellCompDirectiveNoFileComp))
	}
	c.Flags().StringVarP(&client.dir, "chdir", "C", "", "start commands in this directory of the view; with --install and --uninstall: the directory of the settings")
	c.MarkFlagsMutuallyExclusive("install", "uninstall")
	c.Flags().StringVar(&profile, "profile", "", "names of tools: claude, anthropic-editor or mcp-fs")
	return c
}

// agentFlag adds the flag --agent.
func (a *app) agentFlag(c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "agent", os.Getenv("SCOPEFS_AGENT"), "the agent (SCOPEFS_AGENT)")
	_ = c.RegisterFlagCompletionFunc("agent", func(c *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return a.complete(c, nil, word)
	})
}

// toolbox connects to an agent's tools: of a running daemon, of a daemon started
// for this client, or of a delegated task.
type toolbox struct {
	a     *app
	given config.Paths
	paths config.Paths // of the running daemon
	id    scope.ID
	hello api.Hello
	task  string // the socket of a delegated task, which is then the only source of tools; "": none
	end   func() // stops the daemon that we started; nil: none
}

// toolbox checks the flags and returns the toolbox for them.
func (a *app) toolbox(name string, first api.Hello) (*toolbox, error) {
	switch first.Profile {
	case "", "claude", "anthropic-editor", "mcp-fs":
	default:
		return nil, &exitError{exitUsage, fmt.Errorf("unknown profile %q: want claude, anthropic-editor or mcp-fs", first.Profile)}
	}
	if strings.Contains(first.Dir, "\n") {
		return nil, &exitError{exitUsage, fmt.Errorf("-C: %q holds a newline: name another directory", first.Dir)}
	}
	if task := os.Getenv(api.TaskEnv); name == "" && task != "" {
		return &toolbox{a: a, task: task, hello: first}, nil
	}
	p, id, err := a.begin(name)
	if err != nil {
		return nil, err
	}
	return &toolbox{a: a, given: p, paths: p, id: id, hello: first}, nil
}

// open connects to the tools, and starts a daemon if none runs.
func (t *toolbox) open(ctx context.Context) (*net.UnixConn, error) {
	if t.task != "" {
		return api.TaskTools(ctx, t.task, t.hello)
	}
	conn, err := api.Tools(ctx, t.given, t.id, t.hello)
	if !errors.Is(err, api.ErrNoDaemon) {
		return conn, err
	}
	p, end, err := t.a.embedded(ctx, t.given, t.id, t.a.err)
	if err != nil {
		return nil, err
	}
	t.paths, t.end = p, end
	if conn, err = api.Tools(ctx, p, t.id, t.hello); err != nil {
		t.close()
	}
	return conn, err
}

// reopen connects again. It starts no daemon in place of one that we did not start:
// ours would not have its approvals.
func (t *toolbox) reopen(ctx context.Context) (*net.UnixConn, error) {
	if t.end == nil && t.task == "" {
		return api.Tools(ctx, t.paths, t.id, t.hello)
	}
	t.close()
	return t.open(ctx)
}

// pulse returns the pulse of the connected daemon.
func (t *toolbox) pulse() *api.Pulse {
	if t.task != "" {
		return api.NewPulse(t.task)
	}
	return api.NewPulse(t.paths.ToolSocket(string(t.id)))
}

// close stops the daemon that open started, if any.
func (t *toolbox) close() {
	if t.end != nil {
		t.end()
		t.paths, t.end = t.given, nil
	}
}

// relay connects the client on standard input and output to the tools until the
// client's input ends.
func (a *app) relay(ctx context.Context, t *toolbox) error {
	defer t.close()
	opened := false
	var pulse atomic.Pointer[api.Pulse] // of the running daemon
	b := &bridge.Bridge{
		In: a.in, Out: a.out, Log: a.err,
		// The relay's context, because the daemon that open starts lives as long as it.
		Dial: func(context.Context) (bridge.Conn, error) {
			open := t.open
			if opened {
				open = t.reopen
			}
			conn, err := open(ctx)
			if err != nil {
				return nil, err
			}
			opened = true
			pulse.Store(t.pulse())
			return conn, nil
		},
		Alive: func(ctx context.Context) error { return pulse.Load().Check(ctx) },
	}
	return b.Run(ctx)
}
