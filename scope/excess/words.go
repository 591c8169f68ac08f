package excess

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/scopefs/scopefs/scope"
)

// Expression is a pattern as an automaton. Its state is a set of positions in a list of tokens. The zero Expression matches the
// empty word.
type Expression struct {
	tokens []token
	final  []bool // by position: a word may end there
	folded bool   // it matches the word in the form of scope.Fold
}

// token is a step of an Expression.
type token struct {
	kind  tokenKind
	set   []rune // pairs of bounds
	not   bool   // the runes that are not in set
	class bool   // it was written in brackets
	name  bool   // no slash, whatever set says
}

type tokenKind uint8

const (
	oneRune   tokenKind = iota // a rune of the set
	manyRunes                  // any number of them
	manyDirs                   // any number of components, each with its slash
	withinDir                  // a component that the manyDirs before this token passes over
)

var (
	anyRune = token{not: true}
	noSlash = token{not: true, set: []rune{'/', '/'}}
)

func (t token) many() token { return token{kind: manyRunes, set: t.set, not: t.not} }

func (t token) has(r rune) bool { return t.lists(r) != t.not && (r != '/' || !t.name) }

// lists reports whether the bounds have r.
func (t token) lists(r rune) bool {
	for i := 0; i+1 < len(t.set); i += 2 {
		if t.set[i] <= r && r <= t.set[i+1] {
			return true
		}
	}
	return false
}

func literal(text string) (tokens []token) {
	for _, r := range text {
		tokens = append(tokens, token{set: []rune{r, r}})
	}
	return tokens
}

// WildExpression returns the expression of a pattern of names, in which an asterisk stands for any text.
func WildExpression(pattern string) Expression {
	var tokens []token
	for i, text := range strings.Split(pattern, "*") {
		if i > 0 {
			tokens = append(tokens, anyRune.many())
		}
		tokens = append(tokens, literal(text)...)
	}
	return Expression{tokens: tokens, final: finals(tokens)}
}

// finals returns the positions from which only tokens follow that need no rune.
func finals(tokens []token) []bool {
	final := make([]bool, len(tokens)+1)
	final[len(tokens)] = true
	for i := len(tokens) - 1; i >= 0 && tokens[i].kind == manyRunes; i-- {
		final[i] = true
	}
	return final
}

// expression returns the expression of the paths that a rule covers.
func (r *rule) expression() Expression {
	var tokens []token
	parts := slices.CompactFunc(strings.Split(r.path, "/"), func(a, b string) bool { return a == "**" && b == "**" })
	if last := len(parts) - 1; parts[last] == "**" { // what a rule matches covers everything below
		parts = parts[:last]
	}
	for i, part := range parts {
		if part == "**" {
			tokens = append(tokens, token{kind: manyDirs}, token{kind: withinDir})
			continue
		}
		glob, _ := globTokens(part)
		for i := range glob {
			glob[i].name = true
		}
		if tokens = append(tokens, glob...); i+1 < len(parts) {
			tokens = append(tokens, literal("/")...)
		}
	}
	if len(parts) > 0 { // and what is below
		tokens = append(tokens, literal("/")...)
	}
	e := Expression{tokens: append(tokens, anyRune.many()), folded: r.folded}
	e.final = finals(e.tokens)
	if n := len(e.tokens); n > 1 {
		copy(e.final, finals(e.tokens[:n-2])) // the component before the slash ends a path, too
	}
	return e
}

// GlobExpression returns the expression of a valid glob without braces as doublestar matches it against a whole path; false for
// those that it reads in a way of its own: with a class that matches a slash, or with ** beside other characters.
func GlobExpression(text string) (e Expression, ok bool) {
	var rests []string
	for part := range strings.SplitSeq(text, "/") {
		if part != "**" && strings.Contains(part, "**") {
			return e, false
		}
	}
	e.tokens, rests = globTokens(text)
	for _, rest := range rests { // doublestar's isZeroLengthPattern
		e.final = append(e.final, slices.Contains([]string{"", "*", "**", "/**", "**/", "/**/"}, rest))
	}
	return e, !slices.ContainsFunc(e.tokens, func(t token) bool { return t.class && t.has('/') })
}

// globTokens returns the tokens of a valid glob without braces, and the text from each of them on. "**" is any number of
// components if slashes surround it.
func globTokens(text string) (tokens []token, rests []string) {
	for start, i := true, 0; i < len(text); {
		rest := text[i:]
		rests = append(rests, rest)
		r, size := utf8.DecodeRuneInString(rest)
		switch {
		case start && strings.HasPrefix(rest, "**/"):
			tokens = append(tokens, token{kind: manyDirs}, token{kind: withinDir})
			rests = append(rests, "within")
			i += 3
			continue
		case start && rest == "**":
			tokens, size = append(tokens, anyRune.many()), 2
		case r == '*':
			tokens = append(tokens, noSlash.many())
		case r == '?':
			tokens = append(tokens, noSlash)
		case r == '[':
			class, length := classToken(rest)
			tokens, size = append(tokens, class), length
		default:
			if r == '\\' {
				r, size = utf8.DecodeRuneInString(rest[1:])
				size++
			}
			tokens = append(tokens, token{set: []rune{r, r}})
		}
		start = r == '/'
		i += size
	}
	return tokens, append(rests, "")
}

// classToken reads a class such as [^a-z], and returns its length.
func classToken(text string) (t token, length int) {
	i := 1
	t.class = true
	if text[i] == '^' || text[i] == '!' {
		t.not = true
		i++
	}
	next := func() (r rune) {
		if text[i] == '\\' {
			i++
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		i += size
		return r
	}
	for text[i] != ']' {
		low := next()
		high := low
		if text[i] == '-' && text[i+1] != ']' {
			i++
			high = next()
		}
		t.set = append(t.set, low, high)
	}
	return t, i + 1
}

// Grammar says which words there are: a deterministic automaton. A word begins in state 0.
type Grammar struct {
	Next func(state int, r rune) int // negative: no word goes on like this
	Ends func(state int) bool        // a word may end here
}

// pathGrammar has the paths that a view may have: names without dots alone between slashes.
var pathGrammar = Grammar{
	Next: func(state int, r rune) int { // the number of dots since the slash, 3: another name
		switch {
		case r == 0 || r == '/' && state < 3:
			return -1
		case r == '/':
			return 0
		case r == '.' && state < 2:
			return state + 1
		}
		return 3
	},
	Ends: func(state int) bool { return state == 3 },
}

// spelling is a rune that a file system without case does not distinguish from none: with it a name is another spelling of a
// name that a folded expression matches.
const spelling = '\u00ad'

// Words calls visit with a word of the grammar for each set of expressions that match a word together: what is decided by what
// matches is decided about one of these as about any other word. It passes over words that the first expression cannot match any
// more, and ends when visit returns false. It takes from steps about what it costs, and returns false if that does not suffice.
func Words(g Grammar, all []Expression, steps *int, visit func(word string) bool) bool {
	type node struct {
		at    []position
		state int
		word  string
	}
	start := node{}
	for i := range all {
		start.at = append(start.at, position{i, 0})
	}
	reached, matched := map[string]bool{}, map[string]bool{}
	for queue := []node{start}; len(queue) > 0; queue = queue[1:] {
		n := queue[0]
		if *steps -= len(all); *steps < 0 {
			return false
		}
		if set := string(encode(matching(all, n.at), 0)); g.Ends(n.state) && !matched[set] {
			matched[set] = true
			if !visit(n.word) {
				return true
			}
		}
		closed := closure(all, n.at)
		for _, r := range alphabet(all, closed) {
			if *steps -= len(closed) + 1; *steps < 0 {
				return false
			}
			state := g.Next(n.state, r)
			if state < 0 {
				continue
			}
			at := step(all, closed, r)
			if len(at) == 0 || at[0].of > 0 {
				continue
			}
			if key := string(encode(at, state)); !reached[key] {
				reached[key] = true
				queue = append(queue, node{at, state, n.word + string(r)})
			}
		}
	}
	return true
}

// matching returns the positions at which a word may end, one for each expression.
func matching(all []Expression, at []position) (ends []position) {
	for _, p := range at {
		if all[p.of].final[p.token] && (len(ends) == 0 || ends[len(ends)-1].of != p.of) {
			ends = append(ends, position{of: p.of})
		}
	}
	return ends
}

// position is a place in the tokens of an expression.
type position struct{ of, token int }

func comparePositions(a, b position) int {
	if a.of != b.of {
		return a.of - b.of
	}
	return a.token - b.token
}

func encode(at []position, state int) []byte {
	key := []byte{byte(state)}
	for _, p := range at {
		key = append(key, byte(p.of>>8), byte(p.of), byte(p.token>>8), byte(p.token))
	}
	return key
}

// closure returns positions, and those that they reach without a rune.
func closure(all []Expression, at []position) []position {
	closed := slices.Clone(at)
	for i := 0; i < len(closed); i++ {
		p := closed[i]
		if p.token == len(all[p.of].tokens) {
			continue
		}
		switch all[p.of].tokens[p.token].kind {
		case manyRunes:
			p.token++
		case manyDirs:
			p.token += 2
		default:
			continue
		}
		closed = append(closed, p)
	}
	slices.SortFunc(closed, comparePositions)
	return slices.Compact(closed)
}

// step returns the positions after a rune, sorted.
func step(all []Expression, closed []position, r rune) (next []position) {
	for _, p := range closed {
		e := all[p.of]
		if p.token == len(e.tokens) {
			continue
		}
		r := r
		if e.folded {
			text := scope.Fold(string(r))
			if text == "" {
				next = append(next, p)
				continue
			}
			r, _ = utf8.DecodeRuneInString(text)
		}
		switch t := e.tokens[p.token]; {
		case t.kind == oneRune && t.has(r):
			p.token++
		case t.kind == manyRunes && t.has(r):
			next = append(next, position{p.of, p.token + 1}) // for final, which closure does not reach
		case t.kind == manyDirs && r == '/':
			next = append(next, position{p.of, p.token + 2})
		case t.kind == withinDir && r != '/':
		case t.kind == manyDirs:
			p.token++
		case t.kind == withinDir:
			next = append(next, position{p.of, p.token + 1})
			p.token--
		default:
			continue
		}
		next = append(next, p)
	}
	slices.SortFunc(next, comparePositions)
	return slices.Compact(next)
}

// alphabet returns runes that stand for all: those that begin a range of a token, those that follow a range, and one that no
// token lists, which comes first.
func alphabet(all []Expression, at []position) []rune {
	var runes []rune
	var tokens []token
	folded := false
	for _, p := range at {
		e := all[p.of]
		folded = folded || e.folded
		if p.token == len(e.tokens) {
			continue
		}
		t := e.tokens[p.token]
		tokens = append(tokens, t)
		for i := 0; i+1 < len(t.set); i += 2 {
			runes = append(runes, t.set[i], t.set[i+1]+1)
			if e.folded {
				runes = append(runes, unicode.ToUpper(t.set[i]))
			}
		}
	}
	runes = append(runes, '/')
	if folded {
		runes = append(runes, spelling)
	}
	slices.SortFunc(runes, func(a, b rune) int { // words are better read in small letters
		return cmp.Or(cmp.Compare(unicode.ToLower(a), unicode.ToLower(b)), cmp.Compare(b, a))
	})
	runes = slices.DeleteFunc(slices.Compact(runes), func(r rune) bool { return !utf8.ValidRune(r) || r == utf8.RuneError })
	other := func(r rune) bool {
		return !slices.Contains(runes, r) && !slices.ContainsFunc(tokens, func(t token) bool { return t.lists(r) })
	}
	for _, r := range "xyzabcdefghijklmnopqrstuvw0123456789XYZABCDEFGHIJKLMNOPQRSTUVW" {
		if other(r) {
			return append([]rune{r}, runes...)
		}
	}
	for r := rune(0x4e00); r < 0x9fff; r++ {
		if other(r) {
			return append([]rune{r}, runes...)
		}
	}
	return runes
}

// Matches reports whether the expression matches a word.
func (e Expression) Matches(word string) bool {
	all := []Expression{e}
	at := []position{{}}
	for _, r := range word {
		at = step(all, closure(all, at), r)
	}
	return len(matching(all, at)) > 0
}
