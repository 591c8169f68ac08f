package front

import (
	"context"
	"net"
	"os"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/bridge"
	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/command"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/slack"
	"github.com/scopefs/scopefs/internal/terminal"
)

func (f *front) addMCP(root *cobra.Command) {
	var o command.MCP
	root.AddCommand(o.Command(nil, func(c *cobra.Command, words []string) error {
		if len(words) > 0 || o.Install+o.Uninstall+o.Changes != "" || o.ShowSecrets {
			return errLeft
		}
		return f.mcp(c.Context(), &o)
	}))
}

// mcp relays a client to a daemon. A base of a user's daemon, which has to be opened again when that has ended, is left.
func (f *front) mcp(ctx context.Context, o *command.MCP) error {
	task := os.Getenv(client.TaskEnv) != "" && o.Agent == ""
	if !task && os.Geteuid() != 0 {
		p, _, _, err := f.agent(o.Agent, false)
		if _, served := paths.Served(p.Base); err != nil || served {
			return errLeft
		}
	}
	slack.Coarse()
	_, err := bridge.Relay(ctx, terminal.Input(os.Stdin), os.Stdout, os.Stderr,
		client.Hello{Profile: o.Profile, Dir: o.Dir, FullSchemas: o.FullSchemas, Returns: !task, Continues: true},
		func(ctx context.Context, again bool, hello client.Hello) (*net.UnixConn, *client.Pulse, error) {
			return f.tools(ctx, o.Agent, hello, again)
		})
	return err
}
