package tree

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

	"github.com/scopefs/scopefs/tools/file/message"
)

const (
	maxMatches     = 100_000 // names that are sorted
	defaultMatches = 200
)

// glob finds names by a pattern. It follows no links.
func (t *tree) glob(ctx context.Context, in message.GlobArgs) (message.GlobResult, error) {
	p, err := t.at(in.From(t.dirs), message.Reading)
	if err != nil {
		return message.GlobResult{}, err
	}
	pattern, err := t.pattern(p, in.Pattern)
	if err != nil {
		return message.GlobResult{}, err
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
		message.Entry
		at int64
	}
	var all []match
	w := walker{ctx: ctx, git: namesGit(pattern) || namesGit(p.rel), depth: depth, visit: func(p place, below string, _ fs.DirEntry) error {
		if !doublestar.MatchUnvalidated(rest, below) {
			return nil
		}
		if st, err := t.lstat(p, message.Reading); err == nil {
			all = append(all, match{newEntry(p.rel, &st), unix.TimespecToNsec(st.Mtim)})
		}
		if len(all) == maxMatches {
			return errEnough
		}
		return nil
	}}
	r := message.GlobResult{Matches: []message.Entry{}}
	err = w.walk(start, "", 1)
	if r.Truncated = errors.Is(err, errEnough); r.Truncated {
		err = nil
	}
	if err != nil && (base == "." || !isCode(t.fail(start, err, message.Reading), message.NotFound) && !errors.Is(err, unix.ENOTDIR)) {
		return message.GlobResult{}, t.fail(p, err, message.Reading)
	}
	slices.SortFunc(all, func(a, b match) int { return cmp.Or(cmp.Compare(b.at, a.at), strings.Compare(a.Path, b.Path)) })
	limit := cmp.Or(in.Limit, defaultMatches)
	r.Truncated = r.Truncated || len(all) > limit
	for _, m := range all[:min(limit, len(all))] {
		r.Matches = append(r.Matches, m.Entry)
	}
	if len(all) == 0 && !path.IsAbs(in.Pattern) {
		if _, err := t.lstat(p.child(in.Pattern), message.Reading); err == nil && strings.ContainsAny(in.Pattern, special) {
			r.Hint = "there is a file of that name: in a pattern write " + literal.Replace(in.Pattern)
		}
	}
	return r, nil
}

// special are characters that do not stand for themselves in a pattern.
const special = "*?[]{}"

var literal = strings.NewReplacer("*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`, "{", `\{`, "}", `\}`)

// pattern returns a pattern relative to the place of the search. A pattern that leads
// outside matches nothing.
func (t *tree) pattern(p place, pattern string) (string, error) {
	if err := message.CheckPattern(pattern); err != nil {
		return "", err
	}
	if path.IsAbs(pattern) {
		rel, ok := t.dirs.Resolve(pattern)
		if full, _ := t.dirs.Full(rel); ok {
			rel, ok = message.Within(p.full, full)
		}
		if !ok {
			return "", message.Outside(pattern, message.Reading)
		}
		return rel, nil
	}
	if slices.Contains(strings.Split(pattern, "/"), "..") {
		return "", message.Outside(pattern, message.Reading)
	}
	return path.Clean(pattern), nil
}
