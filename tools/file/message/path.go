package message

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

const (
	maxPattern = 1024 // bytes
	maxBraces  = 8    // in a pattern: matching them takes exponential time
)

// Within cleans a path lexically and returns it relative to root. ok is false for a path
// outside of root.
func Within(root, asked string) (rel string, ok bool) {
	rel = path.Clean(asked)
	if path.IsAbs(rel) {
		if rel == root {
			return ".", true
		}
		rel, ok = strings.CutPrefix(rel, root+"/")
		return rel, ok
	}
	return rel, rel != ".." && !strings.HasPrefix(rel, "../")
}

// Dirs are the directories of an agent in its sandbox. None holds another.
type Dirs struct {
	Own   string   // where the agent's own directory is
	At    string   // a second name of Own: its path on the host, to which paths such as ../lib are relative; "": none
	Roots []string // the agent's further directories
}

// Args returns the directories as arguments of the worker: Own, then, if there are any, At and Roots.
func (d Dirs) Args() []string {
	if len(d.Roots) == 0 {
		return []string{d.Own}
	}
	return append([]string{d.Own, d.At}, d.Roots...)
}

// DirsOf returns the Dirs of one or more arguments.
func DirsOf(args []string) Dirs {
	if len(args) == 1 {
		return Dirs{Own: args[0]}
	}
	return Dirs{Own: args[0], At: args[1], Roots: args[2:]}
}

// Resolve cleans a path lexically and returns it relative to Own, or absolute if it is in one of Roots. ok is false for a path
// outside of all of them.
func (d Dirs) Resolve(asked string) (rel string, ok bool) {
	if rel, ok = Within(d.Own, asked); ok {
		return rel, ok
	}
	full := path.Clean(asked)
	if d.At != "" {
		if !path.IsAbs(full) {
			full = path.Join(d.At, full)
		}
		if rel, ok = Within(d.At, full); ok {
			return rel, true
		}
	}
	_, ok = d.root(full)
	return full, ok
}

// Full returns the path for system calls of a path that Resolve has returned, and the directory that the path is in. At must be that
// directory in the sandbox, too.
func (d Dirs) Full(rel string) (full, dir string) {
	if dir, ok := d.root(rel); ok {
		return rel, dir
	}
	dir = cmp.Or(d.At, d.Own) // relative links lead to roots from there
	return path.Join(dir, rel), dir
}

func (d Dirs) root(full string) (dir string, ok bool) {
	i := slices.IndexFunc(d.Roots, func(dir string) bool { return full == dir || strings.HasPrefix(full, dir+"/") })
	if i < 0 {
		return "", false
	}
	return d.Roots[i], true
}

// From returns where a search begins: Path, or without one the directory that an absolute pattern is in.
func (a *GlobArgs) From(d Dirs) string {
	if a.Path != "" || !path.IsAbs(a.Pattern) {
		return a.Path
	}
	dir, _ := d.root(path.Clean(a.Pattern))
	return dir
}

// CheckPattern returns an error for an invalid glob pattern, and for one that would take
// too long to match.
func CheckPattern(pattern string) error {
	switch {
	case len(pattern) > maxPattern:
		return Errorf(Invalid, "pattern longer than %d bytes", maxPattern)
	case strings.Count(pattern, "{") > maxBraces || strings.Count(pattern, "**") > maxBraces:
		return Errorf(Invalid, "pattern with more than %d braces or **", maxBraces)
	case !doublestar.ValidatePattern(pattern):
		return Errorf(Invalid, "not a pattern: %q", pattern)
	}
	return nil
}
