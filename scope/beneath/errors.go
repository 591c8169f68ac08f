package beneath

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

var (
	// ErrEscape reports a path that leads outside its scope: by a link, by
	// "..", or across a mount. A *Violation always wraps it.
	ErrEscape = errors.New("path leads outside the scope")

	// ErrStale reports that the object at a path is no longer the expected one.
	// For ESTALE the kernel repeats the lookup.
	ErrStale = errors.New("no longer the same file")
)

// Violation reports an attempt to reach outside a scope. It matches ErrEscape
// and EACCES. It is never EXDEV, because mv(1) answers EXDEV with a copy.
type Violation struct {
	Rel    string // the requested path, relative to the scope
	Target string // the text of the link, or the path, that leads outside, if known
	Rule   Rule   // the rule that denied it
}

func (v *Violation) Error() string {
	return fmt.Sprintf("%q leads outside the scope (%s)", v.Rel, v.Rule)
}

// Is makes a Violation match ErrEscape and EACCES.
func (v *Violation) Is(target error) bool {
	return target == ErrEscape || target == unix.EACCES
}

// Rule is a rule of path resolution. The audit log records its text.
type Rule string

// The rules of path resolution.
const (
	RuleLink   Rule = "resolution: link leads outside"
	RulePath   Rule = "resolution: path leads outside"
	RuleMount  Rule = "resolution: mount below the scope"
	RuleDevice Rule = "resolution: device node"
	RuleName   Rule = "resolution: not a name"
)
