package harness

import (
	"os"
	"strings"
)

// Cacheless reports whether the kernel must not cache the views of this run.
func Cacheless() bool { return os.Getenv("SCOPEFS_TEST_CACHE") == "none" }

// uncached is a frontmatter whose view is not cached, in a run without caches.
func uncached(front string) string {
	switch {
	case !Cacheless() || strings.Contains(front, "cache:"):
		return front
	case strings.Contains(front, "view: {"):
		return strings.Replace(front, "view: {", "view: {cache: none, ", 1)
	case strings.Contains(front, "view:\n"):
		return strings.Replace(front, "view:\n", "view:\n  cache: none\n", 1)
	}
	return front + "\nview: {cache: none}"
}
