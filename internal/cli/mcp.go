package cli

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/clients"
	"github.com/scopefs/scopefs/internal/command"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/slack"
	"github.com/scopefs/scopefs/internal/toolbox"
	"github.com/scopefs/scopefs/scope/agents"
)

func (a *app) mcpCmd() *cobra.Command {
	var o command.MCP
	c := o.Command(clients.Names(), func(c *cobra.Command, _ []string) error {
		if o.Install != "" || o.Uninstall != "" {
			return a.settings(installing{o.Install, o.Uninstall, o.Dir}, o.Agent)
		}
		slack.Coarse()
		a.flags = agents.Flags{Changes: agents.Changes(o.Changes), ShowSecrets: o.ShowSecrets}
		t, err := a.toolbox(o.Agent, api.Hello{Profile: o.Profile, Dir: o.Dir, FullSchemas: o.FullSchemas})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancelCause(c.Context())
		defer cancel(nil)
		var end func()
		err = t.Move(func(p config.Paths) (at config.Paths, err error) {
			var lost <-chan struct{}
			if at, end, lost, err = a.holdFlags(ctx, p, o.Agent); lost != nil {
				go func() {
					<-lost
					cancel(fmt.Errorf("%s: the daemon has ended, and the flags with it: start this again", a.flags))
				}()
			}
			return at, err
		})
		if err != nil {
			return err
		}
		defer end()
		_, err = t.Relay(ctx)
		if ctx.Err() != nil && c.Context().Err() == nil {
			err = context.Cause(ctx)
		}
		return err
	})
	a.completeAgent(c)
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
