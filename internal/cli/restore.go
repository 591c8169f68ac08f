package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
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
view: {changes: kept}, or held: of a file that was not held by then it is the directory's of now.

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
view: {changes: kept}, or held: restore then changes what is held.

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
				return a.undoIn(ctx, v.kept, directories{v.directory}, undoing{op: "undo", of: v.word, sel: v.sel, json: asJSON})
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
	directory        // whose sel are the changes since then
	word      string // as given
	rel       string
}

// withVersion calls f with the PATH@WHEN of a command line.
func (a *app) withVersion(c *cobra.Command, words []string, f func(context.Context, *api.History, oldVersion) error) error {
	k, err := a.agentWith(c.Context(), words)
	if err != nil {
		return err
	}
	all, err := a.keptDirectories(k)
	if err != nil {
		return err
	}
	if len(k.words) != 1 {
		return exit.Usagef("%s: give one PATH@WHEN (usage: %s)", c.Name(), c.UseLine())
	}
	v := oldVersion{word: k.words[0]}
	i := strings.LastIndexByte(v.word, '@')
	if i <= 0 || i == len(v.word)-1 {
		return exit.Usagef("%q: want PATH@WHEN, such as src/main.go@2h", v.word)
	}
	roots, err := rootsOf(k)
	if err == nil {
		v.root, v.rel, err = locate(k, roots, v.word[:i])
	}
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(d directory) bool { return d.root == v.root })
	if at < 0 {
		return errors.New("nothing was changed there")
	}
	return a.open(c.Context(), all, func(ctx context.Context, all directories) error {
		v.directory = all[at]
		var first time.Time
		if v.sel.Since, first, err = all.timeOf(ctx, v.word[i+1:]); err != nil {
			return err
		}
		err = f(ctx, v.h, v)
		if err == nil && v.sel.Since.Before(first) {
			a.note(fmt.Sprintf("%s: the history begins at %s: the version is that before the first change: "+
				"give a later time, or a name of scopefs changes --list", printable.Text(v.word), first.Local().Format(time.DateTime)))
		}
		return err
	})
}

// timeOf returns the time of a WHEN, which a history may know that is not of the file's directory, and when the first history begins.
func (all directories) timeOf(ctx context.Context, when string) (at, first time.Time, err error) {
	var points, works []time.Time
	for _, d := range all {
		list, err := d.h.Generations(ctx, time.Time{})
		if err != nil {
			return at, first, err
		}
		point, work := began(list, when)
		points, works = append(points, point), append(works, work)
		if len(list) > 0 && (first.IsZero() || list[0].Began.Before(first)) {
			first = list[0].Began
		}
	}
	if at = slices.MaxFunc(points, time.Time.Compare); at.IsZero() {
		works = slices.DeleteFunc(works, time.Time.IsZero)
		slices.SortFunc(works, time.Time.Compare)
		at = append(works, at)[0]
	}
	if !at.IsZero() {
		return at, first, nil
	}
	if at, err = report.Since(when, time.Now()); err != nil {
		err = exit.With(exit.Usage,
			fmt.Errorf("%q is no checkpoint, call, session or time: scopefs changes --list has those of the history", when))
	}
	return at, first, err
}

// began returns when the last checkpoint of a name has begun in one history, and the changes of a call or a session; zero: it has none.
func began(all []history.Generation, when string) (point, work time.Time) {
	for _, g := range all {
		switch {
		case g.Checkpoint == when && g.Parent == "", g.ID == when: // one of a client is named by its id
			point = g.Began
		case work.IsZero() && (g.Call == when || g.Session == when || g.Parent == when):
			work = g.Began
		}
	}
	return point, work
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
