package imports

import (
	"errors"
	"regexp"
	"strings"
)

// errPattern reports a pattern that RE2 does not support.
var errPattern = errors.New("no such pattern")

// goPattern returns a Go regexp that matches at least what the Python pattern matches, so that a filter does not
// admit more. Python's classes include Unicode, and its $ matches before a final newline.
//
// See docs.python.org/3/library/re.html and github.com/google/re2/wiki/Syntax.
func goPattern(python string, fold bool) (string, error) {
	if strings.Contains(python, "{,") { // {,n} is a repetition in Python and text in RE2
		return "", errPattern
	}
	wide := map[byte]string{'d': `\p{Nd}`, 'w': `\p{L}\p{N}_`, 's': `\s\v\x1c-\x1f\x{85}\p{Z}`}
	var b strings.Builder
	inClass := false
	for i := 0; i < len(python); i++ {
		c := python[i]
		switch {
		case c == '\\' && i+1 < len(python):
			i++
			set, ok := wide[python[i]]
			switch {
			case ok && inClass:
				b.WriteString(set)
			case ok:
				b.WriteString("[" + set + "]")
			case strings.IndexByte("QEzpPCB", python[i]) >= 0: // errors in Python, or \B
				return "", errPattern
			case inClass && strings.IndexByte("WDS", python[i]) >= 0, !inClass || python[i] != 'b':
				b.WriteString(python[i-1 : i+1])
			default:
				b.WriteString(`\x08`)
			}
		case inClass:
			inClass = c != ']'
			if c == '[' {
				b.WriteByte('\\') // [[:alpha:]] is a plain set in Python
			}
			b.WriteByte(c)
		case c == '[':
			inClass = true
			b.WriteByte(c)
			for _, first := range []string{"^", "]"} { // a ']' here is a member of the set
				if strings.HasPrefix(python[i+1:], first) {
					i++
					b.WriteString(map[string]string{"^": "^", "]": `\]`}[first])
				}
			}
		case c == '$':
			b.WriteString(`(?:$|\n\z)`)
		default:
			b.WriteByte(c)
		}
	}
	out := b.String()
	if fold {
		out = "(?i)" + out
	}
	if _, err := regexp.Compile(out); err != nil {
		return "", errPattern
	}
	return out, nil
}
