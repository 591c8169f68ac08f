// Package cli is the command line, with one file per command. The commands call the
// other packages and contain no logic of their own.
//
// Data goes to standard output, everything else to standard error. An error is one
// line with a remedy. The exit statuses are a table in help.go.
package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/command"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/consolecmd"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/fleetcmd"
	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/internal/nearest"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/terminal"
	"github.com/scopefs/scopefs/internal/terminal/question"
	"github.com/scopefs/scopefs/internal/trustcmd"
	"github.com/scopefs/scopefs/internal/version"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// synonyms are words of other programs for commands.
var synonyms = map[string]string{
	"held": "diff", "status": "diff", "log": "audit", "history": "changes", "revert": "undo", "install": "mcp --install",
}

// streams are the standard streams of a command.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// app is the state that all commands share.
type app struct {
	streams
	command.Places
	all bool // of the flag --all

	progress *terminal.Progress // of what takes long

	flags  agents.Flags // of run and mcp
	helped error        // of help that needs a daemon, because cobra's help returns no error
}

// Main runs the command line and returns the exit status.
func Main(ctx context.Context, args []string) int {
	// Load the time zone before any process is started: package time opens its file
	// without O_CLOEXEC, and a process that is started meanwhile would inherit it.
	_, _ = time.Now().Zone()
	a := &app{streams: streams{terminal.Input(os.Stdin), os.Stdout, os.Stderr}}
	root := a.root()
	root.SetArgs(args)
	c, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = a.helped
	}
	if err == nil {
		return 0
	}
	code := command.Print(a.err, err)
	status, host := (*exit.Error)(nil), (*mount.HostError)(nil)
	if !errors.As(err, &status) && errors.As(err, &host) {
		code = exit.Host
	}
	if code == exit.Usage && c.Name() == daemonName && !c.Flags().Changed(onlyFlag) {
		code = exit.Config
	}
	return code
}

// Command returns the command line, for its man pages.
func Command() *cobra.Command { return (&app{}).root() }

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "scopefs",
		Short: "give every agent its own view of its own files, and a log of what it tried",
		Long: `scopefs mounts agents/<id>/ of a base directory as a file system of its own for
each agent, runs the agent's programs in a sandbox that has nothing else, and
records what they were denied. scopefs help exit has the exit statuses.`,
		Args: func(c *cobra.Command, words []string) error {
			if len(words) > 0 {
				var names []string
				for _, known := range c.Commands() {
					names = append(names, known.Name())
				}
				if like := cmp.Or(synonyms[words[0]], nearest.Of(words[0], names)); like != "" {
					return exit.Usagef("unknown command %q: did you mean %s", words[0], like)
				}
				return exit.Usagef("unknown command %q: scopefs help lists them", words[0])
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error {
			_, err := io.WriteString(a.out, first)
			return err
		},
		Version:       version.Text(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		_, topic, _ := strings.Cut(c.CommandPath(), " ")
		return exit.Usagef("%w (see %s)", err, strings.TrimSpace("scopefs help "+topic))
	})
	a.Add(root)
	root.AddCommand(a.daemonCmd(), a.upCmd(), a.downCmd(), a.psCmd(), a.reloadCmd(), a.killCmd(), a.forgetCmd(),
		a.runCmd(), a.remedyCmd(), a.trusting().Trust(), a.mcpCmd(), a.callCmd(), a.approvalsCmd(), a.tokenCmd(),
		a.topCmd(), consolecmd.New(consolecmd.Env{Out: a.out, Err: a.err, Client: a.clientOfLast, Start: a.forConsole}),
		fleetcmd.New(fleetcmd.Env{In: a.in, Out: a.out, Err: a.err, Paths: a.settingsPaths,
			Terminal: question.Asker(a.in, a.out) != nil}), a.csiCmd(), a.metricsCmd(), a.storesCmd(),
		a.agentsCmd(), a.promptCmd(), a.presetsCmd(), a.programsCmd(), a.loginCmd(), a.checkCmd(), a.allowCmd(), a.denyCmd(), a.setCmd(),
		a.auditCmd(), a.whyCmd(), a.selftestCmd(), a.changesCmd(), a.branchCmd(), a.diffCmd(), a.commitCmd(),
		a.discardCmd(), a.undoCmd(), a.redoCmd(), a.checkpointCmd(),
		a.showCmd(), a.restoreCmd(), a.doctorCmd(), a.versionCmd(), exitTopic())
	root.InitDefaultCompletionCmd()
	if c, _, err := root.Find([]string{"completion"}); err == nil {
		// cobra's prints its help for any word, with exit status 0.
		c.Args, c.RunE = exit.Args(cobra.NoArgs), func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	group(root)
	return root
}

// complete returns the names of agents, and of the user's projects, for shell completion.
func (a *app) complete(_ *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if p, err := a.paths(); err == nil && len(words) == 0 {
		if all, _, err := definitions.Load(p); err == nil {
			for id := range all.Agents {
				names = append(names, string(id))
			}
		}
	}
	if a.Dir == "" && a.Flags.Base == "" && len(words) == 0 {
		names = append(names, shorts()...)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// ofAgent are the arguments of a command about one agent, which may be left out in a project.
var ofAgent = exit.Args(cobra.MaximumNArgs(1))

// client returns a client of the daemon, and its directories. It is the one place that opens the control API for a
// command that starts nothing.
func (a *app) client() (*api.Client, config.Paths, error) {
	p, err := a.paths()
	if err != nil {
		return nil, p, err
	}
	return api.NewClient(p), p, nil
}

// trusting is what the commands about proposals have.
func (a *app) trusting() trustcmd.Env {
	return trustcmd.Env{
		In: a.in, Out: a.out, Err: a.err,
		Client: func() (*api.Client, error) { client, _, err := a.client(); return client, err },
		Project: func() (*config.Project, error) {
			if _, found := config.FindProject("."); !found && a.Dir == "" && a.Flags.Base == "" {
				a.Dir = "."
			}
			_, project, err := a.where()
			return project, err
		},
		Begin: func() (config.Paths, error) { p, _, err := a.begun(); return p, err },
	}
}

// asking returns the function of a command that only talks to the daemon.
func (a *app) asking(f func(ctx context.Context, client *api.Client, words []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, words []string) error {
		client, _, err := a.client()
		if err != nil {
			return err
		}
		return f(c.Context(), client, words)
	}
}

// askingOf is asking for a command of [ofAgent].
func (a *app) askingOf(f func(ctx context.Context, client *api.Client, id scope.ID) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, words []string) error {
		p, id, err := a.agentNamed(c.Context(), words...)
		if err != nil {
			return err
		}
		return f(c.Context(), api.NewClient(p), id)
	}
}

// terminal returns standard input if it and standard output are terminals; else nil.
func (a *app) terminal() *os.File {
	if in := terminal.File(a.in); in != nil && terminal.Is(a.out) {
		return in
	}
	return nil
}

// A printer prints itself as text.
type printer interface{ Print(io.Writer) error }

// print prints v as text, or as indented JSON.
func (a *app) print(v printer, asJSON bool) error {
	if asJSON {
		return report.JSON(a.out, v)
	}
	return v.Print(a.out)
}

// printLine prints v as text, or as a line of JSON.
func (a *app) printLine(v printer, asJSON bool) error {
	if asJSON {
		return report.Line(a.out, v)
	}
	return v.Print(a.out)
}
