package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
)

// Commit is what a commit of a branch did.
type Commit struct {
	Agent scope.ID `json:"agent"`
	api.Committed
}

// Join adds what was taken over into a further directory of the agent. Its paths become those of the host.
func (r *Commit) Join(dir string, other api.Committed) {
	r.Taken = append(r.Taken, changesIn(dir, other.Taken)...)
	r.Conflicts = append(r.Conflicts, changesIn(dir, other.Conflicts)...)
}

func changesIn(dir string, list []history.Change) []history.Change {
	list = some(slices.Clone(list))
	for i := range list {
		c := &list[i]
		if c.Path = inRoot(dir, c.Path); c.From != "" {
			c.From = inRoot(dir, c.From)
		}
	}
	return list
}

// Print prints how much was taken, and the conflicts.
func (r *Commit) Print(w io.Writer) error {
	var b strings.Builder
	switch {
	case len(r.Taken) > 0:
		fmt.Fprintf(&b, "%s, commit: %s taken\n", r.Agent, counted(len(r.Taken), "change"))
	case len(r.Conflicts) > 0:
		fmt.Fprintf(&b, "%s, commit: nothing was taken\n", r.Agent)
	default:
		fmt.Fprintf(&b, "%s, commit: nothing differs\n", r.Agent)
	}
	for _, c := range r.Taken {
		if c.Merge == api.Merged {
			fmt.Fprintf(&b, "merged: %s\n", printable.Text(quoted(c.Path)))
		}
	}
	for _, c := range r.Conflicts {
		fmt.Fprintf(&b, "conflict: %s: %s\n", printable.Text(quoted(c.Path)), printable.Text(conflict(c)))
	}
	if len(r.Conflicts) > 0 && len(r.Taken) == 0 {
		b.WriteString("of a conflict --theirs takes the agent's version, --ours leaves the directory's\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// conflict returns why a change conflicts, and what a merge would do.
func conflict(c history.Change) string {
	switch c.Merge {
	case "":
		return c.Conflict
	case api.MergeClean:
		return c.Conflict + "; --merge takes both"
	}
	return c.Conflict + "; no merge: " + c.Merge
}

// Discarded returns a line that says how many changes a discard of a branch dropped.
func Discarded(id scope.ID, n int) string {
	return fmt.Sprintf("%s, discard: %s", id, Dropped(n))
}

// Dropped returns what a command prints of changes that it has dropped.
func Dropped(n int) string { return counted(n, "change") + " dropped" }
