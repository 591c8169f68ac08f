package scope

import (
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ruleIndex finds the rules that match a path. The cost grows with the depth of the path and
// with the number of rules in globs, and not with the number of other rules. It does not
// change after Compile.
type ruleIndex struct {
	all      *rule             // "**"
	paths    map[string]*rule  // "a/b" and "a/b/**", by path
	names    map[string]*rule  // "**/name" and "**/name/**", by name
	suffixes map[string]*rule  // "**/*.ext" and "**/*.ext/**", by the text after the star
	lengths  []int             // the distinct lengths of the keys of suffixes
	tails    map[string][]rule // "**/a/b" and "**/a/b/**", by the last name
	globs    map[string][]rule // all other rules, by literal first component, or "" without one
	below    map[string]*rule  // the strictest rule of paths below each proper ancestor
	longest  int               // length of the longest key of paths
}

func newIndex() ruleIndex {
	return ruleIndex{
		paths:    map[string]*rule{},
		names:    map[string]*rule{},
		suffixes: map[string]*rule{},
		tails:    map[string][]rule{},
		globs:    map[string][]rule{},
		below:    map[string]*rule{},
	}
}

// add stores r, which does not change any more, where find looks for rules of its form.
func (x *ruleIndex) add(r *rule) {
	switch path, literal := r.literal(); {
	case len(r.parts) == 0:
		x.all = stricter(x.all, r)
	case literal:
		x.paths[path] = stricter(x.paths[path], r)
		x.longest = max(x.longest, len(path))
		if r.inert {
			return
		}
		for i := strings.LastIndexByte(path, '/'); i >= 0; i = strings.LastIndexByte(path[:i], '/') {
			x.below[path[:i]] = stricter(x.below[path[:i]], r)
		}
	case r.portable() && r.parts[1].kind == literalPart:
		name := r.parts[1].text
		x.names[name] = stricter(x.names[name], r)
	case r.portable() && r.parts[1].kind == suffixPart:
		end := r.parts[1].text
		x.suffixes[end] = stricter(x.suffixes[end], r)
		if !slices.Contains(x.lengths, len(end)) {
			x.lengths = append(x.lengths, len(end))
		}
	case r.isTail():
		name := r.parts[len(r.parts)-1].text
		x.tails[name] = append(x.tails[name], *r)
	default:
		first := ""
		if r.parts[0].kind == literalPart {
			first = r.parts[0].text
		}
		x.globs[first] = append(x.globs[first], *r)
	}
}

// find returns the strictest of best, which may be nil, and the rules that match rel or an
// ancestor of it.
func (x *ruleIndex) find(best *rule, rel string) *rule {
	best = stricter(best, x.all)
	for start := 0; start < len(rel); {
		end := len(rel)
		if i := strings.IndexByte(rel[start:], '/'); i >= 0 {
			end = start + i
		}
		if end <= x.longest {
			best = stricter(best, x.paths[rel[:end]])
		}
		name := rel[start:end]
		best = stricter(best, x.names[name])
		for _, n := range x.lengths {
			if n <= len(name) {
				best = stricter(best, x.suffixes[name[len(name)-n:]])
			}
		}
		if tails := x.tails[name]; tails != nil {
			best = strictest(best, tails, rel[:end])
		}
		start = end + 1
	}
	for _, globs := range x.candidates(rel) {
		best = strictest(best, globs, rel)
	}
	return best
}

// strictest returns the strictest of best, which may be nil, and those of the rules that
// cover rel.
func strictest(best *rule, rules []rule, rel string) *rule {
	for i := range rules {
		// Matching costs more than comparing, so match only rules that
		// could win.
		if r := &rules[i]; stricter(best, r) == r && covers(r.parts, rel) {
			best = r
		}
	}
	return best
}

// candidates returns the rules with wildcards that may match rel.
func (x *ruleIndex) candidates(rel string) [2][]rule {
	first, _, _ := strings.Cut(rel, "/")
	return [2][]rule{x.globs[""], x.globs[first]}
}

// across returns a rule that prevents a move of rel, as [rule.across] says, or nil.
func (x *ruleIndex) across(rel string) *rule {
	if r := x.below[rel]; r != nil {
		return r
	}
	globs := x.candidates(rel)
	for _, rules := range slices.AppendSeq(globs[:], maps.Values(x.tails)) {
		if i := slices.IndexFunc(rules, func(r rule) bool { return r.across(rel) }); i >= 0 {
			return &rules[i]
		}
	}
	return nil
}

// anywhere reports whether a rule may match below any directory.
func (x *ruleIndex) anywhere() bool {
	return len(x.names)+len(x.suffixes)+len(x.tails)+len(x.globs[""]) > 0
}

// placed has the last names of rules that match by more than these: see Policy.Placed.
type placed struct {
	names map[string]bool
	globs []part
}

// add adds a rule. sourced says that it does not match in installed packages.
func (p *placed) add(r *rule, sourced bool) {
	if len(r.parts) == 0 || r.portable() && !sourced {
		return
	}
	switch last := r.parts[len(r.parts)-1]; {
	case last.kind != literalPart:
		p.globs = append(p.globs, last)
	case p.names == nil:
		p.names = map[string]bool{last.text: true}
	default:
		p.names[last.text] = true
	}
}

func (p *placed) has(name string) bool {
	return p.names[name] || slices.ContainsFunc(p.globs, func(last part) bool { return last.matches(name) })
}

// Fold returns the text in the form that all its spellings have which a file system without
// case takes for the same name, as far as it is ASCII in one of them. Such file systems
// (casefold of ext4 and f2fs, with the full folding of Unicode) also ignore characters that
// are not shown, and write ß as ss and the ligature ﬁ as fi.
func Fold(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return 'A' <= r && r <= 'Z' || r >= utf8.RuneSelf }) {
		return text
	}
	if strings.Contains(text, string(utf8.RuneError)) || !utf8.ValidString(text) {
		return foldASCII(text) // such a name is folded by no file system
	}
	var b strings.Builder
	for _, r := range text {
		switch to, special := foldSpecial[r]; {
		case special:
			b.WriteString(to)
		case r >= utf8.RuneSelf && unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector):
		default:
			b.WriteRune(unicode.ToLower(r))
		}
	}
	return b.String()
}

// foldSpecial has the characters outside of ASCII whose full folding is ASCII
// (CaseFolding.txt of Unicode), and that unicode.ToLower does not return as such.
var foldSpecial = map[rune]string{
	'ß': "ss", 'ẞ': "ss", 'ſ': "s", 'ﬀ': "ff", 'ﬁ': "fi", 'ﬂ': "fl", 'ﬃ': "ffi", 'ﬄ': "ffl", 'ﬅ': "st", 'ﬆ': "st",
}

func foldASCII(text string) string {
	b := []byte(text)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}
