package scope

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/bmatcuk/doublestar/v4"
)

// naive decides with doublestar alone: every rule against rel and every
// ancestor. It returns the least and the greatest access that may apply. They
// differ where doublestar departs from Policy: a class matches a slash, and
// "{a*/**,b}" does not match "a".
func naive(spec PolicySpec, rel string) (least, most Access) {
	sure, maybe := none, none
	for _, r := range spec.Paths {
		plain := strings.TrimSuffix(r.Pattern, "/**")
		for strings.HasSuffix(plain, "/**") {
			plain = strings.TrimSuffix(plain, "/**")
		}
		matched := matchesAny(r.Pattern, rel) || matchesAny(plain, rel)
		if matched && !strings.Contains(r.Pattern, "[") {
			sure = stricterAccess(sure, r.Access)
		}
		if matched || strings.Contains(r.Pattern, "{") {
			maybe = stricterAccess(maybe, r.Access)
		}
	}
	return defaultTo(sure, spec.Access), defaultTo(maybe, spec.Access)
}

const none = Access(99)

func stricterAccess(a, b Access) Access {
	if a == none {
		return b
	}
	return max(a, b)
}

func defaultTo(a, fallback Access) Access {
	if a == none {
		return fallback
	}
	return a
}

func matchesAny(pattern, rel string) bool {
	if rel == "" {
		return pattern == "**" || pattern == "**/**"
	}
	for p := rel; p != "."; p = path.Dir(p) {
		if doublestar.MatchUnvalidated(pattern, p) {
			return true
		}
	}
	return false
}

// exact reports whether naive is exact for all rules of spec.
func exact(spec PolicySpec) bool {
	return !slices.ContainsFunc(spec.Paths, func(r PathRule) bool { return strings.ContainsAny(r.Pattern, "[{") })
}

// parseSpec parses lines of a letter and a pattern, such as "r**/x". It drops
// lines that Compile rejects.
func parseSpec(text string, access Access) PolicySpec {
	spec := PolicySpec{Access: access, Hardlinks: HardlinksAllow}
	for line := range strings.SplitSeq(text, "\n") {
		// doublestar takes exponential time for braces.
		if line == "" || len(spec.Paths) == 20 || strings.Count(line, "{") > 2 {
			continue
		}
		r := PathRule{Pattern: line[1:], Access: [4]Access{Hold, Read, Hide, Write}[line[0]%4]}
		if _, err := Compile(PolicySpec{Paths: []PathRule{r}}); err == nil {
			spec.Paths = append(spec.Paths, r)
		}
	}
	return spec
}

// clean makes rel valid for Policy: no NUL, no empty or dotted names.
func clean(rel string) string {
	rel = strings.ReplaceAll(rel, "\x00", "")
	names := strings.FieldsFunc(rel, func(r rune) bool { return r == '/' })
	names = slices.DeleteFunc(names, func(s string) bool { return s == "." || s == ".." })
	return strings.Join(names, "/")
}

func mustCompile(t *testing.T, spec PolicySpec) *Policy {
	p, err := Compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func FuzzPolicyFile(f *testing.F) {
	for _, rules := range []string{
		"bref/**\nc**/.env", "aa/b/c\nb**/x/y\nc*/z", "ba/**/b*\ncb?c/{d,e/f}", "c[!a]x/**", "b**\naout/**", "c**/a*/**/b",
		`b\*a` + "\n" + `c**/\{x`, "b{a,b{c,[}]}}/**", "c*a*b*/**", "a*\nb*/*\nc*/*/*",
		"d**/b\naa/b/c",
	} {
		for _, rel := range []string{"", "a/b/c", "ref/x/.env", "a\xff/x/y", "b/bcc/e/f", "ab/aab/b"} {
			f.Add(rules, true, rel, byte('c'), "**/x*")
			f.Add(rules, false, rel, byte('b'), "a/**")
		}
	}
	f.Fuzz(func(t *testing.T, rules string, write bool, rel string, access byte, extra string) {
		spec := parseSpec(rules, map[bool]Access{true: Write, false: Read}[write])
		p, rel := mustCompile(t, spec), clean(rel)
		got := p.File(OpOpenWrite, rel)

		least, most := naive(spec, rel)
		if exact(spec) && got.Access != most {
			t.Fatalf("%v on %q: %v, naive says %v", spec, rel, got, most)
		}
		if write && (got.Access < least || got.Access > most) {
			t.Fatalf("%v on %q: %v, naive says %v to %v", spec, rel, got, least, most)
		}
		if got.Allow != (got.Access <= Hold) || p.File(OpOpen, rel).Allow != (got.Access != Hide) || got.Hidden != (got.Access == Hide) {
			t.Fatalf("%v on %q: inconsistent %v", spec, rel, got)
		}
		// A rule that covers a directory covers everything below it.
		if below := p.File(OpOpenWrite, clean(rel+"/x")); got.Rule != p.fallback.text && below.Access < got.Access {
			t.Fatalf("%v: %q is %v but below it %v", spec, rel, got, below)
		}
		// An additional rule never allows more.
		more := parseSpec(string('a'+access%2)+extra, Write)
		more.Access, more.Paths = spec.Access, append(more.Paths, spec.Paths...)
		if d := mustCompile(t, more).File(OpOpenWrite, rel); write && d.Access < got.Access {
			t.Fatalf("%v on %q: %v, but %v with %q", spec, rel, got, d, extra)
		}
	})
}

// FuzzPolicyMove checks that if File and Move allow a move of d to e, every
// path below keeps its access.
func FuzzPolicyMove(f *testing.F) {
	for _, rules := range []string{
		"ba/b/c", "c**/b/c", "aa/**", "ca/**/c\nbx", "c*/b\nc*/*/c", "c**/.env", "aa\naz\nba/x/c", "c{a,x/y}/b", "ca/[!b]", "b**/x*/**",
		"aa/b\naz/b\nbz/b/*/c", "d**/b\nda/x\nd**/c/x",
	} {
		f.Add(rules, true, "a", "x", "b/c")
		f.Add(rules, false, "a/b", "z/b", "c")
		f.Add(rules, false, "a/x", "a/b/c", "x/y")
	}
	names := []string{"a", "b", "c", "x", "y", ".env"}
	f.Fuzz(func(t *testing.T, rules string, write bool, from, to, rest string) {
		spec := parseSpec(rules, map[bool]Access{true: Write, false: Read}[write])
		p, from, to := mustCompile(t, spec), clean(from), clean(to)
		moved := p.Move(from).Allow && p.Move(to).Allow &&
			p.File(OpRenameFrom, from).Allow && p.File(OpRename, to).Allow && p.Held(from) == p.Held(to)
		if !moved {
			return
		}
		rests := []string{clean(rest)}
		for _, a := range names {
			rests = append(rests, a)
			for _, b := range names {
				rests = append(rests, a+"/"+b)
			}
		}
		for _, rest := range rests {
			old, now := clean(from+"/"+rest), clean(to+"/"+rest)
			was, is := p.File(OpOpen, old), p.File(OpOpen, now)
			if exact(spec) {
				_, was.Access = naive(spec, old)
				_, is.Access = naive(spec, now)
			}
			if was.Access != is.Access {
				t.Fatalf("%v: moved %q (%v) to %q (%v)", spec, old, was, now, is)
			}
		}
	})
}

// FuzzQuotePattern: the pattern that QuotePattern makes of a path covers that path and what is below it, and nothing else.
func FuzzQuotePattern(f *testing.F) {
	for _, rel := range []string{"**", "a/**", "*", "[a]", "[!a]", "{a,b}", `\*`, `a\`, `\`, "]", "}", "a", "b", "?", "**/x", `[\]]`} {
		for _, other := range []string{"a", "b", "a/b", "**", `\*`, "*", "x", "a/x", "]"} {
			f.Add(rel, other)
		}
	}
	f.Fuzz(func(t *testing.T, rel, other string) {
		rel, other = clean(rel), clean(other)
		pattern := QuotePattern(rel)
		if back, ok := UnquotePattern(pattern); !ok || back != rel {
			t.Fatalf("%q is the pattern %q, which is %q again: %t", rel, pattern, back, ok)
		}
		if UnquotePattern(other); rel == "" || (PathRule{Pattern: pattern}).Check() != nil { // of too many bytes, or bytes that are not UTF-8
			return
		}
		p := mustCompile(t, PolicySpec{Access: Read, Paths: []PathRule{{Pattern: pattern, Access: Write}}})
		for _, name := range []string{rel, other, rel + other, rel + "/" + other} {
			name = clean(name)
			if want := name == rel || strings.HasPrefix(name, rel+"/"); p.File(OpCreate, name).Allow != want {
				t.Fatalf("%q, the pattern of %q, covers %q: %t", pattern, rel, name, !want)
			}
		}
	})
}
