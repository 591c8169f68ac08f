package tree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
)

const (
	maxVisited = 1 << 20 // names that a search examines
)

// namesGit reports whether a pattern or path names something in .git.
func namesGit(text string) bool {
	return slices.Contains(strings.Split(text, "/"), ".git")
}

// walker walks a tree in the order of names and follows no link.
type walker struct {
	ctx     context.Context // of the call
	git     bool            // walk into .git, too
	strict  bool            // an unreadable directory is an error
	depth   int             // levels; 0 means all
	visited int
	visit   func(p place, below string, d fs.DirEntry) error
}

// errEnough ends a walk whose result is full.
var errEnough = errors.New("enough")

// walk visits all names below p. below is their path relative to the beginning of the
// walk. Unless strict, a directory below the first that is unreadable or was removed
// counts as empty.
func (w *walker) walk(p place, below string, level int) error {
	var entries []os.DirEntry
	d, err := openDir(p.full)
	if err == nil {
		entries, err = d.ReadDir(-1)
		d.Close()
	}
	if err != nil && (level == 1 || w.strict) {
		return err
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if w.visited++; w.visited > maxVisited {
			return errEnough
		}
		name := e.Name()
		if below != "" {
			name = below + "/" + name
		}
		child := p.child(e.Name())
		if e.IsDir() && e.Name() == ".git" && !w.git {
			continue
		}
		if err := w.visit(child, name, e); err != nil {
			return err
		}
		if e.IsDir() && (w.depth == 0 || level < w.depth) {
			if err := w.walk(child, name, level+1); err != nil {
				return err
			}
		}
	}
	return nil
}
