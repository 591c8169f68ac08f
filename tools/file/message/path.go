package message

import (
	"path"
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
