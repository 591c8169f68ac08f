package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	unified "github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/changes"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
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

// changeReport is the result of changes.
type changeReport struct {
	Agent   scope.ID     `json:"agent"`
	Since   time.Time    `json:"since"`
	Changes []fileChange `json:"changes"`
	Notes   []string     `json:"notes"` // what cannot be known
}

type fileChange struct {
	changes.Change
	Diff string `json:"diff,omitempty"`
	Note string `json:"note,omitempty"` // why there is no diff
}

func (a *app) changes(ctx context.Context, name string, o changesOptions) error {
	p, project, err := a.existing()
	if err != nil {
		return err
	}
	id, err := a.agentIn(project, name)
	if err != nil {
		return err
	}
	agent, err := agentOf(p, id)
	if err != nil {
		return err
	}
	r := &changeReport{Agent: agent.Name, Changes: []fileChange{}, Notes: []string{}}
	if r.Since, err = a.changesSince(ctx, p, agent.Name, o.since); err != nil {
		return err
	}
	log, err := changesOfLog(ctx, p, agent.Name, r)
	if err != nil {
		return err
	}
	root, err := agent.OpenRoot(p.Base)
	if err != nil {
		return err
	}
	defer root.Close()
	tree, err := changes.Walk(ctx, root, r.Since)
	if err != nil {
		return err
	}
	var before *beneath.Root
	var old *changes.Tree
	if o.against != "" {
		if before, err = beneath.OpenDir(o.against); err != nil {
			return fmt.Errorf("--against: %w", err)
		}
		defer before.Close()
		if old, err = changes.Walk(ctx, before, time.Time{}); err != nil {
			return err
		}
		tree.Left = tree.Left || old.Left
	}
	if info, err := os.Stat(filepath.Join(p.Base, agent.File)); err == nil && !info.ModTime().Before(r.Since) {
		r.note("%s has changed since then: the directory, and what the log should have, are by the present definition", agent.File)
	}
	if agent.View.Record == scope.RecordDenials {
		if o.against == "" {
			r.note("what programs removed is not known: set view: {record: writes} in %s for the next sessions, or give --against with a copy from before", printable.Text(filepath.Join(p.Base, agent.File)))
		}
		r.note("record: denials: the log has nothing that programs changed, so that LOG 0 may also be the host or another agent")
	}
	if log.Left > 0 || tree.Left {
		r.note("there are more changes than this list has")
	}
	for _, dir := range tree.Unread {
		r.note("not looked at: %s: it cannot be read, or is a mount", quoted(printable.Text(dir+"/")))
	}
	inside := 0
	for _, c := range changes.Join(log, tree, old) {
		if changes.Hidden(c.Path) {
			inside++
			continue
		}
		r.Changes = append(r.Changes, fileChange{Change: c})
	}
	if inside > 0 {
		r.note("changes in .git are not listed (%d): the agent can have rewritten the history, and hooks or settings of git", inside)
	}
	if !o.names {
		if err := a.addDiffs(ctx, p, r, root, before); err != nil {
			return err
		}
	}
	if o.json {
		return a.printJSON(r)
	}
	return a.printChanges(r)
}

func (r *changeReport) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// changesSince returns a time of --since, or when the last session of an agent began.
func (a *app) changesSince(ctx context.Context, p config.Paths, id scope.ID, text string) (time.Time, error) {
	if text != "" {
		t, err := since(text, time.Now())
		if err != nil {
			err = &exitError{exitUsage, err}
		}
		return t, err
	}
	var last lastSession
	for e, err := range audit.Read(ctx, p.Audit(), audit.Filter{Agent: string(id)}, false) {
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil && e.Raw == nil:
			return time.Time{}, err
		case err == nil && e.Event == audit.KindSandbox:
			last.add(e)
		}
	}
	if last.began.IsZero() {
		return last.began, &exitError{exitFailed, fmt.Errorf("the log has no session of %s: give --since", id)}
	}
	return last.began, nil
}

// lastSession finds when the last session of an agent began: a command of scopefs run, or a
// client. The calls of scopefs call belong to the session before them. The zero value is
// ready to use.
type lastSession struct {
	began   time.Time // zero: there was none
	clients map[string]bool
}

// add takes the events of the agent's sandboxes.
func (s *lastSession) add(e audit.Event) {
	switch {
	case e.Op == "exec":
		// Programs of calls and MCP servers belong to a client. scopefs changes runs git.
		if e.Outcome != audit.OutcomeBegin || e.Call != "" || e.Server != "" || strings.HasPrefix(e.Target, strings.Join(gitWords, " ")) {
			return
		}
	case e.Outcome != "started" || e.Parent == "" || s.clients[e.Parent]: // a client has several sandboxes
		return
	case e.Op == audit.OpCall && !s.began.IsZero():
		return
	default:
		if s.clients == nil {
			s.clients = map[string]bool{}
		}
		s.clients[e.Parent] = true
	}
	s.began = e.Time
}

// changesOfLog collects the changes in the log.
func changesOfLog(ctx context.Context, p config.Paths, id scope.ID, r *changeReport) (*changes.Log, error) {
	var log changes.Log
	skipped := 0
	for e, err := range audit.Read(ctx, p.Audit(), audit.Filter{Agent: string(id), Since: r.Since}, false) {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			r.note("there is no log in %s", p.Audit())
		case err != nil && e.Raw == nil:
			return nil, err
		case err != nil:
			skipped++
		default:
			log.Add(e)
		}
	}
	if skipped > 0 {
		r.note("%d damaged lines of the log were skipped", skipped)
	}
	return &log, nil
}

// maxDiffs bounds the files with a diff.
const maxDiffs = 1000

// addDiffs adds a diff to each regular file with an old text.
func (a *app) addDiffs(ctx context.Context, p config.Paths, r *changeReport, root, before *beneath.Root) error {
	var wanted []string
	for _, c := range r.Changes {
		if c.Type == "file" || c.Kind == changes.Removed {
			wanted = append(wanted, c.Path)
		}
	}
	if len(wanted) > maxDiffs {
		r.note("%d files changed: the first %d have a diff", len(wanted), maxDiffs)
		wanted = wanted[:maxDiffs]
	}
	if len(wanted) == 0 {
		return nil
	}
	old, from := map[string][]byte{}, ""
	if before != nil {
		from = "--against"
		for _, rel := range wanted {
			if text, err := changes.Read(before, rel); err == nil && text != nil {
				old[rel] = text
			}
		}
	} else {
		var err error
		if old, from, err = a.oldOfGit(ctx, p, r, wanted); err != nil {
			r.note("no diffs: %v", err)
			return nil
		}
		r.note("old texts are of commit %s of the agent's own repository, which the agent can rewrite", from)
	}
	for i := range r.Changes {
		c := &r.Changes[i]
		text, known := old[c.Path]
		if !known {
			continue
		}
		if c.Kind == changes.Added {
			c.Kind = changes.Changed // under the same name there was a file
		}
		c.Diff, c.Note = diffOf(root, c.Path, text)
	}
	return nil
}

// diffOf returns the unified diff from an old text to what is there now.
func diffOf(root *beneath.Root, rel string, before []byte) (diff, note string) {
	now, err := changes.Read(root, rel)
	switch {
	case err != nil:
		return "", err.Error()
	case !isText(before) || !isText(now):
		return "", "no text"
	}
	name := audit.Escape(rel) // a line break in it would make lines of the agent's
	text := unified.Diff("a/"+name, before, "b/"+name, now)
	_, text, _ = bytes.Cut(text, []byte("\n")) // "diff a b"
	return string(text), ""
}

func isText(b []byte) bool { return utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 }

func (a *app) printChanges(r *changeReport) error {
	var b strings.Builder
	plural := "s"
	if len(r.Changes) == 1 {
		plural = ""
	}
	fmt.Fprintf(&b, "%s since %s: %d change%s\n", r.Agent, r.Since.Local().Format(time.DateTime), len(r.Changes), plural)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if len(r.Changes) > 0 {
		fmt.Fprintln(w, "CHANGE\tLOG\tLAST\tPATH")
	}
	for _, c := range r.Changes {
		name := quoted(audit.Escape(c.Path))
		if c.Type != "file" && c.Type != "" {
			name += " (" + c.Type + ")"
		}
		if c.Note != "" {
			name += " (no diff: " + printable.Text(c.Note) + ")"
		}
		last := "-"
		if !c.Last.IsZero() {
			last = c.Last.Local().Format(time.DateTime)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", c.Kind, c.Logged, last, name)
	}
	_ = w.Flush() // to memory
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", printable.Text(note))
	}
	for _, c := range r.Changes {
		if c.Diff != "" {
			b.WriteString("\n" + steady(c.Diff))
		}
	}
	_, err := io.WriteString(a.out, b.String())
	return err
}
