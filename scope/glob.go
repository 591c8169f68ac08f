package scope

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
)

// The limits of a pattern: its length in bytes, and the number of patterns that
// its braces expand to, which grows exponentially.
const (
	MaxPattern      = 1024
	maxAlternatives = 256
)

// rule is a PathRule, or one alternative of its braces.
type rule struct {
	kind   Kind // KindPath, or KindAccess for the default
	access Access
	inert  bool   // can never change a decision
	text   string // the PathRule, as in the log
	parts  []part // never ends in "**", which is redundant; empty for "**" alone
}

// part is the pattern for one component of a path.
type part struct {
	kind   partKind
	text   string
	prefix string // of a globPart: what each name begins with that it matches
}

type partKind uint8

const (
	literalPart partKind = iota // exactly these bytes
	suffixPart                  // "*" and these bytes: the most common glob
	globPart                    // any other doublestar pattern, without braces
	anyPart                     // "**": any number of components
)

// stricter returns the more restrictive rule, of two with the same access a. Either may be
// nil.
func stricter(a, b *rule) *rule {
	if b == nil || a != nil && a.access >= b.access {
		return a
	}
	return b
}

// literal returns the path of a rule without wildcards.
func (r *rule) literal() (path string, ok bool) {
	names := make([]string, len(r.parts))
	for i, p := range r.parts {
		if p.kind != literalPart {
			return "", false
		}
		names[i] = p.text
	}
	return strings.Join(names, "/"), true
}

// portable reports whether the rule matches a name in any directory.
func (r *rule) portable() bool { return len(r.parts) == 2 && r.parts[0].kind == anyPart }

// isTail reports whether the rule matches several literal names in any directory.
func (r *rule) isTail() bool {
	return len(r.parts) > 2 && r.parts[0].kind == anyPart &&
		!slices.ContainsFunc(r.parts[1:], func(p part) bool { return p.kind != literalPart })
}

// across reports whether the rule may match a path below rel by the names of rel, and does
// not cover rel: another name of rel would then have other rules below it.
func (r *rule) across(rel string) bool {
	if r.inert || covers(r.parts, rel) {
		return false
	}
	if len(r.parts) == 0 || r.parts[0].kind != anyPart {
		return reachesBelow(r.parts, rel)
	}
	for more := true; more; { // the rule may begin at each name of rel
		if reachesBelow(r.parts[1:], rel) {
			return true
		}
		_, rel, more = strings.Cut(rel, "/")
	}
	return false
}

// Check returns the error that Compile would return for the rule, or nil.
func (r PathRule) Check() error {
	_, err := parseRule(r)
	return err
}

// parseRule returns the rules for r, one for each alternative.
func parseRule(r PathRule) ([]rule, error) {
	if r.Access >= accessCount {
		return nil, fmt.Errorf("unknown %v: want write, hold, read, ask, seal or hide", r.Access)
	}
	if err := checkPattern(r.Pattern); err != nil {
		return nil, err
	}
	patterns, err := expand(r.Pattern, nil)
	if err != nil {
		return nil, err
	}
	rules, text := make([]rule, 0, len(patterns)), cmp.Or(r.Name, r.Pattern)+": "+r.Access.String()
	for _, pattern := range patterns {
		parts, err := parseParts(pattern)
		if err != nil {
			return nil, err
		}
		if len(parts) == 0 && r.Access >= Seal {
			return nil, errors.New("hides the root of the view: write * to hide all that is in it")
		}
		rules = append(rules, rule{kind: KindPath, access: r.Access, text: text, parts: parts})
	}
	return rules, nil
}

func checkPattern(pattern string) error {
	switch {
	case pattern == "":
		return errors.New("is empty: write ** for everything")
	case len(pattern) > MaxPattern:
		return fmt.Errorf("is longer than %d bytes: write several patterns", MaxPattern)
	case strings.ContainsRune(pattern, 0):
		return errors.New("contains a NUL, which no name can: remove it")
	case strings.ContainsRune(pattern, utf8.RuneError):
		// doublestar reads every byte that is not UTF-8 as U+FFFD, so a literal
		// U+FFFD would match other bytes too. JSON does not preserve such
		// bytes.
		return errors.New("is not UTF-8 or holds U+FFFD: write ? for such a byte")
	case !doublestar.ValidatePattern(pattern):
		return errors.New("has a bracket, brace or backslash without its other half: complete it, or put \\ before it")
	}
	return nil
}

// Expand returns the alternatives of the braces of a valid pattern. It fails for too many.
func Expand(pattern string) ([]string, error) { return expand(pattern, nil) }

// expand appends the alternatives of pattern's braces to out. It expands like
// doublestar, but only once, because matching braces takes exponential time.
func expand(pattern string, out []string) ([]string, error) {
	marks := braces(pattern)
	if marks == nil {
		if len(out) == maxAlternatives {
			return nil, fmt.Errorf("has more than %d alternatives: use fewer braces", maxAlternatives)
		}
		return append(out, pattern), nil
	}
	before, after := pattern[:marks[0]], pattern[marks[len(marks)-1]+1:]
	for i, end := range marks[1:] {
		var err error
		if out, err = expand(before+pattern[marks[i]+1:end]+after, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// braces returns the positions of '{', ',' and '}' of the first group of a
// valid pattern, or nil.
func braces(pattern string) (marks []int) {
	depth := 0
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '\\':
			i++
		case '[':
			for i++; i < len(pattern) && pattern[i] != ']'; i++ {
				if pattern[i] == '\\' {
					i++
				}
			}
		case '{':
			if depth++; depth == 1 {
				marks = append(marks, i)
			}
		case ',':
			if depth == 1 {
				marks = append(marks, i)
			}
		case '}':
			if depth--; depth == 0 {
				return append(marks, i)
			}
		}
	}
	return nil
}

// parseParts splits a pattern without braces into components.
func parseParts(pattern string) ([]part, error) {
	if strings.HasPrefix(pattern, "/") {
		return nil, errors.New("starts with a slash: patterns begin at the root of the view, drop it")
	}
	parts := make([]part, 0, 1+strings.Count(pattern, "/"))
	for text := range strings.SplitSeq(pattern, "/") {
		p, err := parsePart(text)
		if err != nil {
			return nil, err
		}
		if p.kind != anyPart || len(parts) == 0 || parts[len(parts)-1].kind != anyPart {
			parts = append(parts, p)
		}
	}
	// A match covers everything below it, so "dir/**" is equivalent to "dir".
	if parts[len(parts)-1].kind == anyPart {
		parts = parts[:len(parts)-1]
	}
	return slices.Clip(parts), nil
}

func parsePart(text string) (part, error) {
	switch {
	case text == "**":
		return part{kind: anyPart}, nil
	case text == "":
		return part{}, errors.New("has an empty name: remove the slash too many")
	case !doublestar.ValidatePattern(text):
		return part{}, errors.New("has a slash in brackets or after a backslash: write it outside")
	case strings.Contains(text, "**"):
		// doublestar reads it as "*", some tools as "**/*". Reject it, because
		// either can surprise the author.
		return part{}, errors.New("has ** beside other characters: write * for a part of a name, or **/ for directories")
	case text[0] == '*' && !isGlob(text[1:]):
		return part{kind: suffixPart, text: unescape(text[1:])}, nil
	case isGlob(text):
		prefix := text[:strings.IndexAny(text, `*?[\`)]
		return part{kind: globPart, text: text, prefix: prefix}, nil
	}
	name := unescape(text)
	if name == "." || name == ".." {
		return part{}, fmt.Errorf("has the name %s, which no path has: write the path from the root of the view", name)
	}
	return part{kind: literalPart, text: name}, nil
}

// isGlob reports whether text contains an unescaped wildcard.
func isGlob(text string) bool {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '*', '?', '[':
			return true
		}
	}
	return false
}

// QuotePattern returns the pattern that matches the path rel, with what is below it, and no other path.
func QuotePattern(rel string) string { return metacharacters.Replace(rel) }

// UnquotePattern returns the path that QuotePattern made a pattern of; false for every other pattern.
func UnquotePattern(pattern string) (rel string, ok bool) {
	rel = unescape(pattern)
	return rel, QuotePattern(rel) == pattern
}

var metacharacters = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`, "{", `\{`, "}", `\}`)

func unescape(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) {
			i++
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// matches reports whether the part matches name. doublestar gets only single
// names: on a whole path its [^x] would match a slash, and its "a*/**" would
// not match "a".
func (p part) matches(name string) bool {
	switch p.kind {
	case literalPart:
		return p.text == name
	case suffixPart:
		return strings.HasSuffix(name, p.text)
	default:
		return strings.HasPrefix(name, p.prefix) && doublestar.MatchUnvalidated(p.text, name)
	}
}

// covers reports whether parts match rel or an ancestor of it. It uses the
// earliest match after each "**". Only the last "**" can need another attempt.
func covers(parts []part, rel string) bool {
	var again []part
	var againRel string
	for len(parts) > 0 {
		if parts[0].kind == anyPart {
			parts = parts[1:]
			again, againRel = parts, rel
			continue
		}
		if rel == "" {
			return false
		}
		name, rest, _ := strings.Cut(rel, "/")
		if parts[0].matches(name) {
			parts, rel = parts[1:], rest
			continue
		}
		if again == nil {
			return false
		}
		_, againRel, _ = strings.Cut(againRel, "/")
		parts, rel = again, againRel
	}
	return true
}

// reachesBelow reports whether parts may match a path strictly below rel. It
// may return true for a path that they cannot match, as for everything after a
// "**".
func reachesBelow(parts []part, rel string) bool {
	for len(parts) > 0 && parts[0].kind != anyPart && rel != "" {
		name, rest, _ := strings.Cut(rel, "/")
		if !parts[0].matches(name) {
			return false
		}
		parts, rel = parts[1:], rest
	}
	return len(parts) > 0
}
