package file

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools"
)

const (
	maxMatches     = 100_000 // names that are sorted
	defaultMatches = 200
)

// GlobArgs are the arguments of glob.
type GlobArgs struct {
	Pattern string `json:"pattern" limit:"len=1024" jsonschema:"such as **/*.go or src/{a,b}/*: * is within a name, ** any number of directories"`
	Path    string `json:"path,omitempty" jsonschema:"the directory to search, relative to the workspace (default: its root)"`
	Limit   int    `json:"limit,omitempty" limit:"min=1,max=5000,default=200" jsonschema:"most results"`
}

// About judges the pattern, too: one that is not absolute begins at Path.
func (a GlobArgs) About() tools.About {
	of := about(reading, a.Path)
	of.Target = a.Pattern
	from := a.Pattern
	if !path.IsAbs(from) {
		from = path.Join(of.Path, from)
	}
	if of.Outside == nil && strayed(reading, from) != nil {
		of.Outside = outside(a.Pattern, reading)
	}
	return of
}

// GlobResult is the result of glob.
type GlobResult struct {
	Matches   []Entry `json:"matches" limit:"items=5000" jsonschema:"the last changed first"`
	Truncated bool    `json:"truncated,omitempty" jsonschema:"there are more"`
}

func (r GlobResult) Content() []tools.Content {
	var b strings.Builder
	for _, e := range r.Matches {
		b.WriteString(tools.Quote(e.Path))
		if e.Type == "directory" {
			b.WriteByte('/')
		}
		b.WriteByte('\n')
	}
	switch {
	case len(r.Matches) == 0:
		b.WriteString("no matches\n")
	case r.Truncated:
		b.WriteString("[there are more; narrow the pattern]\n")
	}
	return []tools.Content{{Text: b.String()}}
}

// glob finds names by a pattern. It follows no links.
func (t *tree) glob(ctx context.Context, in GlobArgs) (GlobResult, error) {
	p, err := t.at(in.Path, reading)
	if err != nil {
		return GlobResult{}, err
	}
	pattern, err := t.pattern(p, in.Pattern)
	if err != nil {
		return GlobResult{}, err
	}
	// Begin the search below the part before the first wildcard.
	base, rest := doublestar.SplitPattern(pattern)
	start := p
	if base != "." {
		start = p.child(base)
	}
	depth := 0
	if !strings.Contains(rest, "**") {
		depth = strings.Count(rest, "/") + 1
	}
	type match struct {
		Entry
		at int64
	}
	var all []match
	w := walker{ctx: ctx, git: namesGit(pattern) || namesGit(p.rel), depth: depth, visit: func(p place, below string, _ fs.DirEntry) error {
		if !doublestar.MatchUnvalidated(rest, below) {
			return nil
		}
		if st, err := t.lstat(p, reading); err == nil {
			all = append(all, match{newEntry(p.rel, &st), unix.TimespecToNsec(st.Mtim)})
		}
		if len(all) == maxMatches {
			return errEnough
		}
		return nil
	}}
	r := GlobResult{Matches: []Entry{}}
	err = w.walk(start, "", 1)
	if r.Truncated = errors.Is(err, errEnough); r.Truncated {
		err = nil
	}
	if err != nil && (base == "." || !isCode(t.fail(start, err, reading), tools.NotFound) && !errors.Is(err, unix.ENOTDIR)) {
		return GlobResult{}, t.fail(p, err, reading)
	}
	slices.SortFunc(all, func(a, b match) int { return cmp.Or(cmp.Compare(b.at, a.at), strings.Compare(a.Path, b.Path)) })
	limit := cmp.Or(in.Limit, defaultMatches)
	r.Truncated = r.Truncated || len(all) > limit
	for _, m := range all[:min(limit, len(all))] {
		r.Matches = append(r.Matches, m.Entry)
	}
	return r, nil
}

// pattern returns a pattern relative to the place of the search. A pattern that leads
// outside matches nothing.
func (t *tree) pattern(p place, pattern string) (string, error) {
	if err := CheckPattern(pattern); err != nil {
		return "", err
	}
	if path.IsAbs(pattern) {
		rel, ok := Within(p.full, pattern)
		if !ok {
			return "", outside(pattern, reading)
		}
		return rel, nil
	}
	if slices.Contains(strings.Split(pattern, "/"), "..") {
		return "", outside(pattern, reading)
	}
	return path.Clean(pattern), nil
}
