package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/report"
)

func (a *app) checkpointCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "checkpoint AGENT|--dir DIR [NAME]",
		Short: "name the present state of an agent's files",
		Long: `Makes a checkpoint in the agent's history and prints its id. It takes no time and no
space. scopefs changes, undo, show and restore take its name or its id; of several with one
name they take the last. scopefs changes --list lists them. The agent's definition must say
view: {changes: kept}, or held.`,
		ValidArgsFunction: a.complete,
		RunE: func(c *cobra.Command, words []string) error {
			k, err := a.agentWith(c.Context(), words)
			if err != nil {
				return err
			}
			all, err := a.keptDirectories(k)
			if err != nil {
				return err
			}
			if len(k.words) > 1 {
				return exit.Usagef("checkpoint: give one NAME (usage: %s)", c.UseLine())
			}
			name := strings.Join(k.words, "") // one, or none
			if err := history.CheckName(name); err != nil {
				return exit.With(exit.Usage, err)
			}
			return a.open(c.Context(), all, func(ctx context.Context, all directories) error {
				id := ""
				for _, d := range all {
					one, err := d.h.Checkpoint(ctx, cmp.Or(name, id))
					if err != nil {
						return err
					}
					id = cmp.Or(id, one)
				}
				if asJSON {
					return report.Line(a.out, map[string]string{"agent": string(k.id), "checkpoint": id, "name": name})
				}
				fmt.Fprintln(a.out, printable.Text(id))
				return nil
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
