package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/report"
)

type changesOptions struct {
	since, against string
	json, names    bool
}

func (a *app) changesCmd() *cobra.Command {
	var o changesOptions
	c := &cobra.Command{
		Use:   "changes AGENT|--dir DIR",
		Short: "show what an agent changed, by file",
		Long: `Lists the files that an agent changed, from the log and from the tree, and prints a
unified diff of each file with an old text. Without --since it begins with the agent's
last session in the log: a command of scopefs run, or a client of its tools. What
scopefs call did is part of the session before it.

The log has what the file tools did, and with record: writes (or opens, all) what
programs did. The tree has each file whose inode changed since then, whoever did it. A
file that was removed is in the log, and with --against in DIR. LOG is the number of
operations in the log, 0 is a change that only the tree or DIR shows.

The old text is of --against DIR, a copy of the agent's directory from before, such as a
snapshot. Otherwise it is of the last commit before that time in the agent's own git
repository. git runs in the agent's sandbox, never on the host, because a repository can
make it start programs. The agent can rewrite its repository: such a diff proves nothing.

Files are not opened through links. A file of more than a megabyte, or that is no text,
has no diff, nor has a file after the first 1,000. Files in .git are counted in a note.`,
		Args:              args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: a.complete,
		RunE: func(c *cobra.Command, words []string) error {
			return a.changes(c.Context(), strings.Join(words, ""), o)
		},
	}
	c.Flags().StringVar(&o.since, "since", "", "from then on: a duration such as 2h, or a time")
	c.Flags().StringVar(&o.against, "against", "", "a directory with the old files, such as a snapshot")
	c.Flags().BoolVar(&o.names, "names", false, "print no diff")
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return c
}

func (a *app) changes(ctx context.Context, name string, o changesOptions) error {
	p, id, err := a.agentOf(name)
	if err != nil {
		return err
	}
	from, err := since(o.since, time.Now())
	if err != nil {
		return exitWith(exitUsage, err)
	}
	how := report.ChangesOptions{Since: from, Against: o.against, Names: o.names}
	r, err := report.FindChanges(ctx, p, api.NewClient(p), id, how)
	if err != nil {
		return err
	}
	return a.print(r, o.json)
}
