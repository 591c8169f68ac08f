// Package command has the commands that a daemon does: their flags and their arguments. The small command asks the daemon; where that does
// not suffice, scopefsd does the same command by itself.
package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
)

// Places are the flags of every command, as given: see Where.
type Places struct {
	Flags       paths.Paths
	Dir, Branch string
	Root        string
	Given       func(flag string) bool // reports whether a flag of every command is on the command line
}

// Add adds the flags.
func (p *Places) Add(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&p.Flags.Base, "base", os.Getenv("SCOPEFS_BASE"),
		"base directory, with agents/ and agents.d/ (SCOPEFS_BASE; default that of the user's daemon, or of the host's package)")
	f.StringVar(&p.Dir, "dir", "", "directory of a project, in place of a base: its state is in $XDG_STATE_HOME/scopefs")
	f.StringVar(&p.Branch, "branch", "", "a branch of the agent: see scopefs branch")
	f.StringVar(&p.Root, "root", "", "a further directory of the agent: of view: {roots}, or of run --with")
	f.StringVar(&p.Flags.State, "state", os.Getenv("SCOPEFS_STATE"), "directory of the audit log (SCOPEFS_STATE; default BASE/state)")
	f.StringVar(&p.Flags.Run, "run", os.Getenv("SCOPEFS_RUN"), "directory of the socket and mount points (SCOPEFS_RUN; default BASE/run)")
	p.Given = f.Changed
}

// Where returns the directories of the command. The project is that of --dir, else, if no
// base is given, that of the working directory or of one above it; nil for a base.
func (p *Places) Where(find paths.Finder) (paths.Paths, *paths.Project, error) {
	at, project, err := p.Flags, (*paths.Project)(nil), error(nil)
	switch {
	case p.Dir != "" && p.Given("base"):
		err = errors.New("--dir and --base: give one of them")
	case p.Dir != "":
		var of paths.Project
		if of, err = find.At(p.Dir); err == nil {
			project = &of
		}
	case at.Base == "":
		of, found, no := find.Find(".")
		if found {
			project = &of
		}
		if errors.Is(no, paths.ErrOld) {
			err = no
		}
	}
	if err != nil {
		return at, nil, exit.With(exit.Usage, err)
	}
	if project == nil {
		if at, err = at.Complete(); err != nil {
			err = exit.With(exit.Usage, err)
		}
		return at, nil, err
	}
	at = paths.Paths{Base: project.Base}
	// The environment's are those of a base.
	if p.Given("state") {
		at.State = p.Flags.State
	}
	if p.Given("run") {
		at.Run = p.Flags.Run
	}
	return at, project, nil
}

// Print prints the error of a command in a line, and returns its exit status: 0 for nil.
func Print(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	code, refused := exit.Failed, (*client.Error)(nil)
	status, said := errors.AsType[*exit.Error](err)
	notLoaded := (*client.NotLoadedError)(nil)
	switch {
	case said:
		code = status.Status
	case errors.As(err, &notLoaded), errors.Is(err, client.ErrUnknown), errors.Is(err, scope.ErrInvalidID),
		errors.As(err, &refused) && slices.Contains([]client.ErrorKind{client.Invalid, client.UnknownAgent, client.NotLoaded}, refused.Kind):
		code = exit.Usage
	}
	if !said || status.Err != nil {
		// errors.Join separates its errors by newlines.
		fmt.Fprintf(stderr, "scopefs: %s\n", printable.Text(strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
	return code
}

// AgentFlag adds the flag --agent.
func AgentFlag(c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "agent", os.Getenv("SCOPEFS_AGENT"), "the agent (SCOPEFS_AGENT)")
}

// AddProject adds the flags --changes and --show-secrets.
func AddProject(c *cobra.Command, showSecrets *bool, changes *string) {
	c.Flags().BoolVar(showSecrets, "show-secrets", false, "with --dir: do not hide .env, .env.*, *.pem and private keys of SSH")
	c.Flags().StringVar(changes, "changes", "",
		"with --dir: kept, for scopefs undo; held, until scopefs commit; direct; or auto, kept where it can be")
	_ = c.RegisterFlagCompletionFunc("changes",
		cobra.FixedCompletions([]string{"auto", "direct", "held", "kept"}, cobra.ShellCompDirectiveNoFileComp))
}
