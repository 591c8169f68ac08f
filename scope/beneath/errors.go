package beneath

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

var (
	// ErrEscape is the error of a path that leads outside its scope: by a
	// link, by "..", or across a mount. It is always wrapped in a *Violation.
	ErrEscape = errors.New("path leads outside the scope")

	// ErrStale says that what stands at a path is no longer the object that
	// was meant. The kernel looks the name up again when it gets ESTALE.
	ErrStale = errors.New("no longer the same file")
)

// Violation tells of an attempt to reach outside a scope. It is an ErrEscape
// and an EACCES: never EXDEV, which makes mv(1) copy.
type Violation struct {
	Rel    string // the path asked for, relative to the scope
	Target string // where it would have led, as far as that is known
	Rule   Rule   // that stopped it
}

func (v *Violation) Error() string {
	return fmt.Sprintf("%q leads outside the scope (%s)", v.Rel, v.Rule)
}

// Is makes a Violation match ErrEscape and EACCES.
func (v *Violation) Is(target error) bool {
	return target == ErrEscape || target == unix.EACCES
}

// Rule is a rule of resolution. Its value is the text that the log has.
type Rule string

// The rules of resolution.
const (
	RuleLink   Rule = "resolution: link leads outside"
	RulePath   Rule = "resolution: path leads outside"
	RuleMount  Rule = "resolution: mount below the scope"
	RuleDevice Rule = "resolution: device node"
	RuleName   Rule = "resolution: not a name"
)
