package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/bases"
	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/embedded"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/launch"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/programs"
	"github.com/scopefs/scopefs/internal/prompt"
	"github.com/scopefs/scopefs/internal/terminal"
)

// Exit statuses of run besides the command's own; the same as those of env(1) and timeout(1).
const (
	exitTimedOut      = 124
	exitRunFailed     = 125
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the signal's number
)

type runOptions struct {
	tty, noTTY bool
	dir        string
	program    string
	changes    string
	env        launch.Variables
}

func (a *app) runCmd() *cobra.Command {
	var o runOptions
	c := &cobra.Command{
		Use:   "run [flags] AGENT|--dir DIR [flags] [--] [COMMAND [ARG...]]",
		Short: "run a command in an agent's sandbox",

		DisableFlagsInUseLine: true, // Use has them already: flags after COMMAND are the command's
		Long: `Runs a command in a sandbox that has the agent's view at /workspace, a
read-only system, and nothing else. If a daemon runs for the base, it starts the
sandbox; otherwise scopefs mounts the view for this command alone. Without COMMAND it
runs a shell, which reads standard input.

With --dir the view is of that directory, and no agent need be defined: scopefs makes
the definition $XDG_STATE_HOME/scopefs/ID/agents.d/ID.md once, for you to edit. The log
is there as well; audit, why and check find it in that directory, or by --dir.

With --for the command is an agent program: scopefs finds it in PATH, shows it and its
interpreter, and adds its arguments. COMMAND is then what the program gets, and may be
left out.

The command gets pipes, or with -t its own terminal; -t is the default if standard
input and output are both terminals. Signals are forwarded.

The process list of the host shows the words of this command. A secret belongs into
-e NAME, into the file of --env-file, or into env of the agent's definition.

Exit status: the command's; 128+N if signal N killed it; 124 for a timeout; 125 if
scopefs failed; 126 if the command cannot be executed; 127 if it does not exist.`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.complete,
		RunE: func(c *cobra.Command, words []string) error {
			name, argv, err := a.runWords(c, words, &o)
			if help, _ := c.Flags().GetBool("help"); help {
				return c.Help()
			}
			code := exitRunFailed
			if err == nil {
				code, err = a.run(c.Context(), name, argv, o)
			}
			if code == 0 && err == nil {
				return nil
			}
			return exit.With(code, err)
		},
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return exit.With(exitRunFailed, fmt.Errorf("%w (see scopefs help run)", err))
	})
	c.Flags().SetInterspersed(false)
	c.Flags().BoolVarP(&o.tty, "tty", "t", false, "give the command a terminal")
	c.Flags().BoolVarP(&o.noTTY, "no-tty", "T", false, "give the command pipes")
	c.Flags().StringVar(&o.program, "for", "", "run this agent program: "+strings.Join(programs.Builtin(), ", "))
	_ = c.RegisterFlagCompletionFunc("for", cobra.FixedCompletions(programs.Builtin(), cobra.ShellCompDirectiveNoFileComp))
	a.addProject(c, &o.changes)
	c.Flags().StringVarP(&o.dir, "chdir", "C", "", "start in this directory of the view")
	c.Flags().StringArrayVarP(&o.env.Set, "env", "e", nil, "set NAME=VALUE for the command, or NAME to the value that it has here")
	c.Flags().StringArrayVar(&o.env.Files, "env-file", nil, "set the variables of a file, a line each; -e wins")
	return c
}

// runWords returns the agent and the command of the words after the first flags. With
// --dir all words are the command. Flags may come after the agent, too.
func (a *app) runWords(c *cobra.Command, words []string, o *runOptions) (name string, argv []string, err error) {
	if a.dir == "" {
		if len(words) == 0 {
			return "", nil, fmt.Errorf("which agent: give AGENT, or --dir DIR for a directory without one (usage: %s)", c.UseLine())
		}
		if c.ArgsLenAtDash() == 0 {
			command := cmp.Or(printable.Command("scopefs", "run", "--dir", ".", "--", words[0]), "scopefs run --dir . --")
			if len(words) > 1 {
				command += " ..."
			}
			return "", nil, fmt.Errorf("which agent: for this directory write %s", command)
		}
		name = words[0]
		if err := c.ParseFlags(words[1:]); err != nil {
			return "", nil, err
		}
		words = c.Flags().Args()
	}
	if len(words) == 0 && o.program == "" {
		words = []string{"sh"}
		if _, err := os.Stat("/usr/bin/bash"); err == nil {
			words = []string{"bash"}
		}
	}
	return name, words, nil
}

func (a *app) run(ctx context.Context, name string, argv []string, o runOptions) (int, error) {
	if o.tty && o.noTTY {
		return exitRunFailed, errors.New("--tty and --no-tty: give one of them")
	}
	p, id, err := a.begin(name)
	if err != nil {
		return exitRunFailed, err
	}
	unset, err := a.define(ctx, name, o.changes)
	if err != nil {
		return exitRunFailed, err
	}
	began := false
	defer func() {
		if !began {
			unset()
		}
	}()
	env, err := o.env.Read()
	if err != nil {
		return exitRunFailed, err
	}
	at := a.place(p)
	if o.dir == "" && at.Project != nil {
		o.dir = at.Project.Below
	}
	req := api.RunRequest{RunRequest: client.RunRequest{Argv: argv, Dir: o.dir, Env: env, Keys: at.Keys(), Changes: o.changes}}
	if t := os.Getenv("TERM"); t != "" && env["TERM"] == "" {
		env["TERM"] = t
	}
	if o.program != "" {
		of, err := a.baseAgentIn(p, at.Project, name) // a branch has its rules
		if err != nil {
			return exitRunFailed, err
		}
		if err := at.For(ctx, of, o.program, &req); errors.Is(err, programs.ErrNotFound) {
			return exitNotFound, err
		} else if err != nil {
			return exitRunFailed, err
		}
	}
	if o.tty || a.terminal() != nil && !o.noTTY {
		req.TTY = terminal.Size()
	}
	asks := prompt.New(id, req.TTY != nil && a.terminal() != nil)
	req.Attended, req.Others = asks != nil, a.dir != ""
	var run *api.Run
	_, err = bases.Retry(ctx, p, func() (err error) {
		run, err = at.Run(ctx, id, req)
		return err
	})
	if errors.Is(err, api.ErrNoDaemon) {
		var end func()
		if p, end, err = embedded.Start(ctx, p, id, io.Discard); err != nil {
			return exitRunFailed, err
		}
		defer end()
		at.Paths = p
		run, err = at.Run(ctx, id, req)
	}
	var refused *api.Error
	switch {
	case errors.As(err, &refused) && refused.Kind == api.NotFound:
		if a.dir != "" && o.program == "" {
			err = fmt.Errorf("%w (--dir takes no AGENT)", err)
		}
		return exitNotFound, err
	case errors.As(err, &refused) && refused.Kind == api.NotExecutable:
		return exitNotExecutable, err
	case err != nil:
		return exitRunFailed, err
	}
	defer run.Close()
	began = true
	exit, err := terminal.Attend(run, a.in, a.out, a.err, a.remedyOf(p, id, name), asks.Of(p))
	switch {
	case err != nil:
		return exitRunFailed, err
	case exit.TimedOut:
		return exitTimedOut, errors.New("the agent's time limit was reached")
	case exit.Signal != 0:
		return exitSignal + exit.Signal, nil
	}
	return exit.Code, nil
}
