package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/report"
)

const versions = `WHEN is a checkpoint, by name or id, or the id of a call or a session: the file as it was
before that; or a time, or a duration such as 2h: as it was then.`

func (a *app) showCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "show AGENT|--dir DIR PATH@WHEN",
		Short: "print an old version of a file",
		Long: `Prints the content that a file of an agent had. The agent's definition must say
view: {changes: kept}.

` + versions + ` Of a symbolic link show prints the text.`,
		ValidArgsFunction: a.completePaths,
		RunE: func(c *cobra.Command, words []string) error {
			return a.withVersion(c, words, func(ctx context.Context, h *api.History, v oldVersion) error {
				found, err := h.Before(ctx, audit.Escape(v.rel), v.sel)
				if err != nil {
					return err
				}
				_, err = h.Read(ctx, found, -1, a.out)
				return err
			})
		},
	}
}

func (a *app) restoreCmd() *cobra.Command {
	var to string
	var force, asJSON bool
	c := &cobra.Command{
		Use:   "restore AGENT|--dir DIR PATH@WHEN",
		Short: "bring an old version of a file back",
		Long: `Takes back what changed PATH, a file or a directory of the agent's view, since WHEN, as
scopefs undo does. With --to it writes the content that the file PATH had into a directory
of the host, and changes nothing in the view. The agent's definition must say
view: {changes: kept}.

` + versions + `

--to follows no link for the file's name. Exit status: as undo.`,
		ValidArgsFunction: a.completePaths,
		RunE: func(c *cobra.Command, words []string) error {
			if force && to == "" {
				return exit.Usagef("--force: it is for --to")
			}
			return a.withVersion(c, words, func(ctx context.Context, h *api.History, v oldVersion) error {
				if to != "" {
					return a.writeVersion(ctx, h, v, to, force)
				}
				v.sel.Paths = []string{audit.Escape(v.rel)}
				return a.undoBy(ctx, h, v.kept, undoing{op: "undo", of: v.word, sel: v.sel, json: asJSON})
			})
		},
	}
	c.Flags().StringVar(&to, "to", "", "write the file into this directory of the host")
	c.Flags().BoolVar(&force, "force", false, "with --to: replace a file that is there")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// oldVersion is a PATH@WHEN of a command line.
type oldVersion struct {
	kept
	word string // as given
	rel  string
	sel  history.Selection // the changes since then
}

// withVersion calls f with the PATH@WHEN of a command line.
func (a *app) withVersion(c *cobra.Command, words []string, f func(context.Context, *api.History, oldVersion) error) error {
	k, err := a.keptAgent(c.Context(), words)
	if err != nil {
		return err
	}
	if len(k.words) != 1 {
		return exit.Usagef("%s: give one PATH@WHEN (usage: %s)", c.Name(), c.UseLine())
	}
	v := oldVersion{kept: k, word: k.words[0]}
	i := strings.LastIndexByte(v.word, '@')
	if i <= 0 || i == len(v.word)-1 {
		return exit.Usagef("%q: want PATH@WHEN, such as src/main.go@2h", v.word)
	}
	if v.rel, err = relOf(v.word[:i]); err != nil {
		return err
	}
	return a.with(c.Context(), k, func(ctx context.Context, h *api.History) error {
		if v.sel.Since, err = timeOf(ctx, h, v.word[i+1:]); err != nil {
			return err
		}
		return f(ctx, h, v)
	})
}

// timeOf returns the time of a WHEN.
func timeOf(ctx context.Context, h *api.History, when string) (time.Time, error) {
	all, err := h.Generations(ctx, time.Time{})
	if err != nil {
		return time.Time{}, err
	}
	var at time.Time
	for _, g := range all {
		switch {
		case g.Checkpoint == when && g.Parent == "", g.ID == when: // one of a client is named by its id
			at = g.Began // the last one
		case at.IsZero() && (g.Call == when || g.Session == when || g.Parent == when):
			at = g.Began
		}
	}
	if !at.IsZero() {
		return at, nil
	}
	if at, err = report.Since(when, time.Now()); err != nil {
		return at, exit.With(exit.Usage,
			fmt.Errorf("%q is no checkpoint, call, session or time: scopefs changes --list has those of the history", when))
	}
	return at, nil
}

// writeVersion writes an old content into a directory of the host.
func (a *app) writeVersion(ctx context.Context, h *api.History, v oldVersion, to string, force bool) error {
	found, err := h.Before(ctx, audit.Escape(v.rel), v.sel)
	if err != nil {
		return err
	}
	dir, err := os.OpenRoot(to)
	if err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	defer dir.Close()
	name := path.Base(v.rel)
	draft, err := durable.Begin(dir, name, durable.Options{Mode: 0o666, Shared: true, New: !force})
	if err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	defer draft.Close()
	content, err := h.Read(ctx, found, -1, draft)
	if err != nil {
		return err
	}
	if content.Link {
		return fmt.Errorf("%s was a symbolic link: scopefs show prints its text", printable.Text(v.rel))
	}
	if err = draft.Place(); errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s has %q already: give --force to replace it", to, name)
	}
	if err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	fmt.Fprintf(a.err, "scopefs: %s of %s: %d bytes in %s\n", printable.Text(v.word), v.id, content.Size, printable.Text(path.Join(to, name)))
	return nil
}
