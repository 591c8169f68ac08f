package cli

import (
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/clients"
	"github.com/scopefs/scopefs/internal/command"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/thread"
	"github.com/scopefs/scopefs/internal/toolbox"
)

func (a *app) mcpCmd() *cobra.Command {
	var name, profile, changes string
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
session continues. A call of bash in flight runs on where the view lives on. Other calls
in flight fail with an error: their effect is unknown.
Without a daemon a call waits up to 10 seconds, and scopefs mcp up to a minute.

--profile offers the tools under the names that a client or model knows:
claude (Read, Edit, Bash...), anthropic-editor (str_replace_based_edit_tool), or
mcp-fs (as @modelcontextprotocol/server-filesystem).

--install writes the settings with which claude, codex, gemini or opencode starts this
command in a directory, and with which it leaves its own file and shell tools alone.
It prints the files that it wrote. --uninstall restores them. With these -C names the
directory of the settings; else it names the directory of the view in which commands start.

Exit status: 0 at the end of the client's input, 1 failure, 2 bad usage.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if client.install != "" || client.uninstall != "" {
				return a.settings(client, name)
			}
			thread.Coarse()
			t, err := a.toolbox(name, api.Hello{Profile: profile, Dir: client.dir})
			if err != nil {
				return err
			}
			unset, err := a.define(c.Context(), name, changes)
			if err != nil {
				return err
			}
			connected, err := t.Relay(c.Context())
			if !connected {
				unset()
			}
			return err
		},
	}
	a.agentFlag(c, &name)
	c.Flags().StringVar(&client.install, "install", "", "write the settings of this program: "+strings.Join(clients.Names(), ", "))
	c.Flags().StringVar(&client.uninstall, "uninstall", "", "restore the settings of this program")
	for _, flag := range []string{"install", "uninstall"} {
		_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(clients.Names(), cobra.ShellCompDirectiveNoFileComp))
	}
	command.AddProject(c, &a.showSecrets, &changes)
	c.Flags().StringVarP(&client.dir, "chdir", "C", "",
		"start commands in this directory of the view; with --install and --uninstall: the directory of the settings")
	c.MarkFlagsMutuallyExclusive("install", "uninstall")
	c.Flags().StringVar(&profile, "profile", "", "names of tools: claude, anthropic-editor or mcp-fs")
	return c
}

// agentFlag adds the flag --agent.
func (a *app) agentFlag(c *cobra.Command, name *string) {
	command.AgentFlag(c, name)
	a.completeAgent(c)
}

// completeAgent adds shell completion to the flag --agent.
func (a *app) completeAgent(c *cobra.Command) {
	_ = c.RegisterFlagCompletionFunc("agent", func(c *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return a.complete(c, nil, word)
	})
}

// toolbox checks the flags and returns the toolbox for them.
func (a *app) toolbox(name string, first api.Hello) (*toolbox.Toolbox, error) {
	switch first.Profile {
	case "", "claude", "anthropic-editor", "mcp-fs":
	default:
		return nil, exit.Usagef("unknown profile %q: want claude, anthropic-editor or mcp-fs", first.Profile)
	}
	if strings.Contains(first.Dir, "\n") {
		return nil, exit.Usagef("-C: %q holds a newline: name another directory", first.Dir)
	}
	var t *toolbox.Toolbox
	if task := os.Getenv(client.TaskEnv); name == "" && task != "" {
		t = toolbox.OfTask(task, first)
	} else {
		p, id, err := a.begin(name)
		if err != nil {
			return nil, err
		}
		t = toolbox.Of(p, id, first)
	}
	t.In, t.Out, t.Stderr = a.in, a.out, a.err
	return t, nil
}
