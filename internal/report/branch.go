package report

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
)

// Branches are the branches of a base.
type Branches []Branch

// Branch is what one holds.
type Branch struct {
	Branch    scope.ID         `json:"branch"`
	Agent     scope.ID         `json:"agent"`
	Root      string           `json:"root,omitempty"` // the further directory of the agent that it is of alone; "": none, or its own
	Forked    time.Time        `json:"forked,omitzero"`
	Changes   int              `json:"changes"`
	Bytes     int64            `json:"bytes"`     // of the files that it adds or changes
	Conflicts int              `json:"conflicts"` // with the directory
	Overlaps  map[scope.ID]int `json:"overlaps"`  // how many paths another branch of the agent changes, too
	Error     string           `json:"error,omitempty"`

	paths []string // sorted
}

// Find finds what the branch holds of a directory: of the agent's own, or of its root dir.
func (b *Branch) Find(ctx context.Context, h *api.History, dir string) error {
	d, err := h.Diff(ctx, nil, false)
	if err != nil {
		return err
	}
	if dir != "" {
		d.List = changesIn(dir, d.List)
	}
	if b.Forked.IsZero() || d.Forked.Before(b.Forked) {
		b.Forked = d.Forked
	}
	b.Changes += len(d.List)
	for _, c := range d.List {
		b.Bytes += max(c.NewSize, 0)
		if c.Conflict != "" {
			b.Conflicts++
		}
		b.paths = append(b.paths, c.Path)
		if c.From != "" {
			b.paths = append(b.paths, c.From)
		}
	}
	slices.Sort(b.paths)
	return nil
}

// Compare finds what branches of one agent have in common.
func (all Branches) Compare() {
	for i := range all {
		all[i].Overlaps = map[scope.ID]int{}
		for j := range all {
			if all[i].Branch == all[j].Branch || all[i].Agent != all[j].Agent || all[i].Root != all[j].Root {
				continue
			}
			for _, path := range all[i].paths {
				if _, found := slices.BinarySearch(all[j].paths, path); found {
					all[i].Overlaps[all[j].Branch]++
				}
			}
		}
	}
}

// when returns some words if yes.
func when(yes bool, words ...any) []any {
	if yes {
		return words
	}
	return nil
}

// Print prints a row for each branch.
func (all Branches) Print(w io.Writer) error {
	var t Table
	roots := slices.ContainsFunc(all, func(b Branch) bool { return b.Root != "" })
	row := func(branch, agent, root string, words ...any) {
		t.Row(slices.Concat([]any{branch, agent}, when(roots, cmp.Or(quoted(root), "-")), words)...)
	}
	row("BRANCH", "AGENT", "ROOT", "FORKED", "CHANGES", "SIZE", "CONFLICTS", "OVERLAPS")
	for _, b := range all {
		if b.Error != "" {
			row(string(b.Branch), string(b.Agent), b.Root, "-", "-", "-", "-", printable.Text(b.Error))
			continue
		}
		var others []string
		for _, other := range slices.Sorted(maps.Keys(b.Overlaps)) {
			others = append(others, fmt.Sprintf("%s %d", other, b.Overlaps[other]))
		}
		row(string(b.Branch), string(b.Agent), b.Root, b.Forked.Local().Format(time.DateTime), fmt.Sprint(b.Changes), sizeText(b.Bytes),
			fmt.Sprint(b.Conflicts), list(others))
	}
	return t.Print(w)
}
