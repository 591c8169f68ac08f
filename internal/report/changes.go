package report

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
	"time"
	"unicode/utf8"

	unified "github.com/rogpeppe/go-internal/diff"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/changes"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Changes is what an agent changed, by file.
type Changes struct {
	Agent   scope.ID     `json:"agent"`
	Since   time.Time    `json:"since"`
	Changes []FileChange `json:"changes"`
	Notes   []string     `json:"notes"` // what cannot be known
}

// FileChange is a changed file.
type FileChange struct {
	changes.Change
	Diff string `json:"diff,omitempty"`
	Note string `json:"note,omitempty"` // why there is no diff
}

// ChangesOptions says which changes are wanted.
type ChangesOptions struct {
	Since   time.Time // zero: since the agent's last session
	Against string    // a directory with the old files; "": those of the agent's git repository
	Names   bool      // no diff
}

// FindChanges returns what an agent changed, from the log and from the tree. client runs git in a sandbox of the agent.
func FindChanges(ctx context.Context, p config.Paths, client *api.Client, id scope.ID, o ChangesOptions) (*Changes, error) {
	agent, err := definitions.Agent(p, id)
	if err != nil {
		return nil, err
	}
	r := &Changes{Agent: agent.Name, Changes: []FileChange{}, Notes: []string{}}
	if r.Since = o.Since; r.Since.IsZero() {
		r.Since, err = lastSessionOf(ctx, p, agent.Name)
	}
	if err != nil {
		return nil, err
	}
	log, err := changesOfLog(ctx, p, agent.Name, r)
	if err != nil {
		return nil, err
	}
	root, err := agent.OpenRoot(p.Base)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	tree, err := changes.Walk(ctx, root, r.Since)
	if err != nil {
		return nil, err
	}
	var before *beneath.Root
	var old *changes.Tree
	if o.Against != "" {
		if before, err = beneath.OpenDir(o.Against); err != nil {
			return nil, fmt.Errorf("--against: %w", err)
		}
		defer before.Close()
		if old, err = changes.Walk(ctx, before, time.Time{}); err != nil {
			return nil, err
		}
		tree.Left = tree.Left || old.Left
	}
	if info, err := os.Stat(filepath.Join(p.Base, agent.File)); err == nil && !info.ModTime().Before(r.Since) {
		r.note("%s has changed since then: the directory, and what the log should have, are by the present definition", agent.File)
	}
	if agent.View.Record == scope.RecordDenials {
		if o.Against == "" {
			r.note("what programs removed is not known: set view: {record: writes} in %s for the next sessions, "+
				"or give --against with a copy from before", filepath.Join(p.Base, agent.File))
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
		r.Changes = append(r.Changes, FileChange{Change: c})
	}
	if inside > 0 {
		r.note("changes in .git are not listed (%d): the agent can have rewritten the history, and hooks or settings of git", inside)
	}
	if !o.Names {
		if err := r.addDiffs(ctx, client, root, before); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *Changes) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// lastSessionOf returns when the last session of an agent began.
func lastSessionOf(ctx context.Context, p config.Paths, id scope.ID) (time.Time, error) {
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
		return last.began, fmt.Errorf("the log has no session of %s: give --since", id)
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
func changesOfLog(ctx context.Context, p config.Paths, id scope.ID, r *Changes) (*changes.Log, error) {
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
func (r *Changes) addDiffs(ctx context.Context, client *api.Client, root, before *beneath.Root) error {
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
		if old, from, err = oldOfGit(ctx, client, r, wanted); err != nil {
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

// Print prints the list, the notes and the diffs.
func (r *Changes) Print(to io.Writer) error {
	var b strings.Builder
	plural := "s"
	if len(r.Changes) == 1 {
		plural = ""
	}
	fmt.Fprintf(&b, "%s since %s: %d change%s\n", r.Agent, r.Since.Local().Format(time.DateTime), len(r.Changes), plural)
	var table Table
	if len(r.Changes) > 0 {
		table.Row("CHANGE", "LOG", "LAST", "PATH")
	}
	for _, c := range r.Changes {
		name := quoted(audit.Escape(c.Path))
		if c.Type != "file" && c.Type != "" {
			name += " (" + c.Type + ")"
		}
		if c.Note != "" {
			name += " (no diff: " + c.Note + ")"
		}
		last := "-"
		if !c.Last.IsZero() {
			last = c.Last.Local().Format(time.DateTime)
		}
		table.Row(c.Kind, c.Logged, last, name)
	}
	_ = table.Print(&b) // to memory
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", printable.Text(note))
	}
	for _, c := range r.Changes {
		if c.Diff != "" {
			b.WriteString("\n" + printable.Lines(c.Diff))
		}
	}
	_, err := io.WriteString(to, b.String())
	return err
}
