package cli

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/bases"
	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/command"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/embedded"
	"github.com/scopefs/scopefs/internal/programs"
	"github.com/scopefs/scopefs/internal/prompt"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/terminal"
	"github.com/scopefs/scopefs/scope/agents"
)

func (a *app) runCmd() *cobra.Command {
	var o command.Run
	c := o.Command(programs.Builtin(), func(c *cobra.Command, words []string) (int, error) {
		a.flags = agents.Flags{Changes: agents.Changes(o.Changes), ShowSecrets: o.ShowSecrets}
		name, argv, err := o.Words(c, words, a.Dir)
		if help, _ := c.Flags().GetBool("help"); help {
			return 0, c.Help()
		}
		if err != nil {
			return command.RunFailed, err
		}
		return a.run(c.Context(), name, argv, o)
	})
	c.ValidArgsFunction = a.complete
	return c
}

func (a *app) run(ctx context.Context, name string, argv []string, o command.Run) (int, error) {
	if o.TTY && o.NoTTY {
		return command.RunFailed, errors.New("--tty and --no-tty: give one of them")
	}
	p, id, err := a.begin(name)
	if err != nil {
		return command.RunFailed, err
	}
	p, end, _, err := a.holdFlags(ctx, p, name)
	if err != nil {
		return command.RunFailed, err
	}
	defer end()
	env, err := o.Env.Read()
	if err != nil {
		return command.RunFailed, err
	}
	at := a.place(p)
	if o.Dir == "" && at.Project != nil {
		o.Dir = at.Project.Below
	}
	with, err := o.Roots()
	if err != nil {
		return command.RunFailed, err
	}
	dir := ""
	if at.Project != nil {
		dir = at.Project.Dir
	}
	keyring, err := o.SSH(dir)
	if err != nil {
		return command.RunFailed, err
	}
	req := api.RunRequest{RunRequest: client.RunRequest{
		Argv: argv, With: with, SSH: keyring, Publish: o.Publish, HostPorts: o.HostPorts, Dir: o.Dir, Env: env, Keys: at.Keys(),
		Changes: string(a.flags.Changes), Stops: true}}
	if t := os.Getenv("TERM"); t != "" && env["TERM"] == "" {
		env["TERM"] = t
	}
	if o.Program != "" {
		of, err := a.baseAgentIn(p, at.Project, name) // a branch has its rules
		if err != nil {
			return command.RunFailed, err
		}
		err = at.For(ctx, of, o.Program, &req)
		if err == nil && len(req.Program.Presets) > 0 && !o.Quiet {
			a.note(report.ForRun(at.Project, o.Program, req.Program.Presets))
		}
		if errors.Is(err, programs.ErrNotFound) {
			return command.NotFound, err
		} else if err != nil {
			return command.RunFailed, err
		}
	}
	if o.TTY || a.terminal() != nil && !o.NoTTY {
		req.TTY = terminal.Size()
	}
	asks := prompt.New(id, req.TTY != nil && a.terminal() != nil)
	req.Attended, req.Others = asks != nil, a.Dir != ""
	progress := terminal.Show(a.err, terminal.Soon, "starting the agent "+string(id))
	defer progress.End()
	var run *api.Run
	_, err = bases.Retry(ctx, p, func() (err error) {
		run, err = at.Run(ctx, id, req)
		return err
	})
	if errors.Is(err, api.ErrNoDaemon) {
		var end func()
		if p, end, err = embedded.Start(ctx, p, id, io.Discard); err != nil {
			if _, none := definitions.Agent(at.Paths, id); errors.Is(none, api.ErrUnknown) { // a text is all that the process has left
				err = &api.Error{Kind: api.UnknownAgent, Text: err.Error()}
			}
			return command.RunFailed, err
		}
		defer end()
		at.Paths = p
		run, err = at.Run(ctx, id, req)
	}
	if err != nil {
		return command.NotStarted(err, a.Dir != "" && o.Program == "" && definitions.Has(at.Paths, argv[0]))
	}
	defer run.Close()
	progress.End()
	ended, err := terminal.Attend(run, a.in, a.out, a.err, a.remedyOf(p, id, name), asks.Of(p))
	if err != nil {
		return command.RunFailed, err
	}
	o.Report(a.err, run, name, a.Dir)
	return command.Ended(ended)
}
