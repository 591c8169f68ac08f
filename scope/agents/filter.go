package agents

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
)

// maxRegexp limits an expression of a filter, in bytes. maxFilters limits those of a definition, in instructions: 64 KiB of
// nested repetitions, which a repository proposes, else take the daemon gigabytes before the operator has decided.
const (
	maxRegexp  = 1024
	maxFilters = 20_000
)

// compileFilter compiles an expression of a [scope.Filter]. left is how many instructions all may have. It takes those of this one.
func compileFilter(text string, left *int) (*regexp.Regexp, error) {
	if text == "" || len(text) > maxRegexp {
		return nil, fmt.Errorf("is no regular expression of 1 to %d bytes: correct it", maxRegexp)
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if e, ok := errors.AsType[*syntax.Error](err); ok {
		err = fmt.Errorf("%s: `%s`", e.Code, e.Expr)
	}
	if err != nil {
		return nil, fmt.Errorf("is no regular expression of 1 to %d bytes (%w): correct it", maxRegexp, err)
	}
	if *left -= instructions(parsed); *left < 0 {
		return nil, fmt.Errorf("is beyond the %d steps of all filters, repetitions counted: repeat less", maxFilters)
	}
	return regexp.Compile(text)
}

// instructions returns about how many instructions an expression compiles to.
func instructions(re *syntax.Regexp) int {
	n := 1
	if re.Op == syntax.OpLiteral {
		n = len(re.Rune)
	}
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return n
}
