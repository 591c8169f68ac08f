package file

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/scopefs/scopefs/tools"
)

const (
	maxVisited = 1 << 20 // names that a search looks at
	maxPattern = 1024    // bytes
	maxBraces  = 8       // of a pattern: matching them takes exponential time
)

// CheckPattern returns an error for an invalid glob pattern, and for one that would take
// too long to match.
func CheckPattern(pattern string) error {
	switch {
	case len(pattern) > maxPattern:
		return tools.Errorf(tools.Invalid, "pattern longer than %d bytes", maxPattern)
	case strings.Count(pattern, "{") > maxBraces || strings.Count(pattern, "**") > maxBraces:
		return tools.Errorf(tools.Invalid, "pattern with more than %d braces or **", maxBraces)
	case !doublestar.ValidatePattern(pattern):
		return tools.Errorf(tools.Invalid, "not a pattern: %q", pattern)
	}
	return nil
}

// namesGit reports whether a pattern or path asks for what is in .git.
func namesGit(text string) bool {
	return slices.Contains(strings.Split(text, "/"), ".git")
}

// walker goes through a tree in the order of names and follows no link.
type walker struct {
	ctx     context.Context // of the one call it is for
	git     bool            // into .git, too
	strict  bool            // what may not be read ends it
	depth   int             // levels; 0 is all
	visited int
	visit   func(p place, below string, d fs.DirEntry) error
}

// errEnough ends a walk that has found what there is room for.
var errEnough = errors.New("enough")

// walk visits all below p; below is their path from where the walk began. What
// may not be read, or is gone, has nothing in it.
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
