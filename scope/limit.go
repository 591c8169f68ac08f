package scope

import (
	"cmp"
	"fmt"
	"regexp"
	"time"
)

// Rate bounds how often the tools that Pattern matches are called, together: N
// calls at once, and one more each Per/N.
type Rate struct {
	Pattern string
	N       int // above zero
	Per     time.Duration
}

// String returns the rate as a definition has it: "bash: 30/minute".
func (r Rate) String() string {
	unit := map[time.Duration]string{time.Second: "second", time.Minute: "minute", time.Hour: "hour", 24 * time.Hour: "day"}[r.Per]
	return fmt.Sprintf("%s: %d/%s", r.Pattern, r.N, cmp.Or(unit, r.Per.String()))
}

// Filter refuses calls of the tools that Pattern matches when a string in their
// arguments matches one of Regexps.
type Filter struct {
	Pattern string
	Regexps []*regexp.Regexp // none: the filter refuses nothing
}
