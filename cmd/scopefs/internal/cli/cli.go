// Package cli is the command line: a file a command, each a thin face of the
// packages below.
//
// Data goes to standard output, everything else to standard error. An error is
// one line that says what to do. Exit statuses: 0 done, 1 it failed (check: the
// policy denies it), 2 it was asked wrongly, or check, agents show and prompt of
// an agent that does not load, 3 the daemon can mount nothing on this host. Those
// of run are told there.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/cmd/scopefs/internal/config"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/control"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/mount"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
)

// The exit statuses.
const (
	exitFailed = 1
	exitUsage  = 2
	exitHost   = 3
)

// exitError carries a status; without an error nothing is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// streams are where a command reads and writes.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// app is what all commands share.
type app struct {
	streams
	flags  config.Paths // as given; see paths
	helped error        // of help that had to ask a daemon: cobra's help returns none
}

// Main runs the command line and returns the exit status.
func Main(ctx context.Context, args []string) int {
	a := &app{streams: streams{os.Stdin, os.Stdout, os.Stderr}}
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = a.helped
	}
	if err == nil {
		return 0
	}
	code := exitFailed
	var exit *exitError
	var refused *control.Error
	var host *mount.HostError
	switch {
	case errors.As(err, &exit):
		code = exit.code
	case errors.As(err, &host):
		code = exitHost
	case errors.As(err, &refused) && refused.Kind == control.Invalid, errors.Is(err, scope.ErrInvalidID):
		code = exitUsage
	}
	if exit == nil || exit.err != nil {
		// One line, also of an errors.Join.
		fmt.Fprintf(a.err, "scopefs: %s\n", printable.Text(strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
	return code
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "scopefs",
		Short: "give every agent its own view of its own files, and a log of what it tried",
		Long: `scopefs mounts agents/<id>/ of a base directory as a file system of its own for
each agent, runs the agent's programs in a sandbox that has nothing else, and
records what they were denied.

Exit status: 0 done, 1 it failed, 2 it was asked wrongly, or check, agents show
and prompt of an agent that does not load, 3 the daemon can mount nothing on this
host; run and check have their own, see there.`,
		Args: func(c *cobra.Command, words []string) error {
			if len(words) > 0 {
				return &exitError{exitUsage, fmt.Errorf("unknown command %q: scopefs help lists them", words[0])}
			}
			return nil
		},
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &exitError{exitUsage, fmt.Errorf("%w (see scopefs help %s)", err, c.Name())}
	})
	f := root.PersistentFlags()
	f.StringVar(&a.flags.Base, "base", os.Getenv("SCOPEFS_BASE"), "base directory, with agents/ and agents.d/ (SCOPEFS_BASE)")
	f.StringVar(&a.flags.State, "state", os.Getenv("SCOPEFS_STATE"), "directory of the audit log (SCOPEFS_STATE; default BASE/state)")
	f.StringVar(&a.flags.Run, "run", os.Getenv("SCOPEFS_RUN"), "directory of the socket and mount points (SCOPEFS_RUN; default BASE/run)")
	root.AddCommand(a.daemonCmd(), a.upCmd(), a.downCmd(), a.psCmd(), a.reloadCmd(), a.runCmd(), a.agentsCmd(), a.promptCmd(),
		a.mcpCmd(), a.callCmd(), a.approvalsCmd(), a.tokenCmd(), a.auditCmd(), a.whyCmd(), a.checkCmd(), a.versionCmd())
	return root
}

// paths completes the directories that were given.
func (a *app) paths() (config.Paths, error) {
	p, err := a.flags.Complete()
	if err != nil {
		return p, &exitError{exitUsage, err}
	}
	return p, nil
}

// args wraps a check of arguments so that a wrong number is bad usage.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, words []string) error {
		if err := check(c, words); err != nil {
			return &exitError{exitUsage, fmt.Errorf("%w (usage: %s)", err, c.UseLine())}
		}
		return nil
	}
}

// complete completes the names of agents.
func (a *app) complete(_ *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if p, err := a.paths(); err == nil && len(words) == 0 {
		if all, _, err := load(p); err == nil {
			for id := range all.Agents {
				names = append(names, string(id))
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
