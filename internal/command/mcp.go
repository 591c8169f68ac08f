package command

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/exit"
)

// MCP are the flags of mcp.
type MCP struct {
	Agent, Profile, Changes, Dir string
	Install, Uninstall           string
	ShowSecrets, FullSchemas     bool
}

// Command returns mcp, which do does. programs are the names for --install.
func (o *MCP) Command(programs []string, do func(c *cobra.Command, words []string) error) *cobra.Command {
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
		RunE: do,
	}
	AgentFlag(c, &o.Agent)
	c.Flags().StringVar(&o.Install, "install", "", "write the settings of this program: "+strings.Join(programs, ", "))
	c.Flags().StringVar(&o.Uninstall, "uninstall", "", "restore the settings of this program")
	for _, flag := range []string{"install", "uninstall"} {
		_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(programs, cobra.ShellCompDirectiveNoFileComp))
	}
	AddProject(c, &o.ShowSecrets, &o.Changes)
	c.Flags().StringVarP(&o.Dir, "chdir", "C", "",
		"start commands in this directory of the view; with --install and --uninstall: the directory of the settings")
	c.MarkFlagsMutuallyExclusive("install", "uninstall")
	c.Flags().StringVar(&o.Profile, "profile", "", "names of tools: claude, anthropic-editor or mcp-fs")
	c.Flags().BoolVar(&o.FullSchemas, "full-schemas", false,
		"list the tools with the schemas of their results and every bound, for a client that reads them")
	return c
}
