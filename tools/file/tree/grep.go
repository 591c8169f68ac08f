package tree

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/interrupted"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/tools/file/message"
)

const (
	maxSearched  = 32 << 20 // bytes of a file
	maxSearchers = 4        // threads
	defaultLines = 200      // matching lines, or files

	maxShown    = 500       // bytes of a line
	maxGrepText = 256 << 10 // bytes of an answer
	maxSpan     = 50        // lines of one match that are shown
)

// grep searches the content of files with a regular expression, in linear time.
func (t *tree) grep(ctx context.Context, in message.GrepArgs) (message.GrepResult, error) {
	p, err := t.at(in.Path, message.Reading)
	if err != nil {
		return message.GrepResult{}, err
	}
	s, err := newSearch(t, in)
	if err != nil {
		return message.GrepResult{}, err
	}
	st, err := t.lstat(p, message.Reading)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK { // the call names the link itself
		err = interrupted.Retry(func() error { return unix.Stat(p.full, &st) })
	}
	if err != nil {
		return message.GrepResult{}, t.fail(p, err, message.Reading)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if err := regular(p, st.Mode); err != nil {
			return message.GrepResult{}, err
		}
		if st.Size > maxSearched {
			return message.GrepResult{}, message.Problem(message.TooLarge, p.rel, "file larger than 32 MiB", "")
		}
		s.take(0, s.file(p))
		return s.result(nil), nil
	}
	err = s.directory(ctx, p, in.Glob)
	if err != nil && !errors.Is(err, errEnough) {
		return message.GrepResult{}, t.fail(p, err, message.Reading)
	}
	return s.result(err), nil
}

// search is the state of one grep, shared by its searchers.
type search struct {
	tree   *tree
	in     message.GrepArgs
	re     *regexp.Regexp
	before int
	after  int
	limit  int

	mu    sync.Mutex
	next  int                      // number of the next file
	early map[int]*message.Matched // results of files after next
	found []message.Matched
	size  int // bytes of text in found
	count int // lines or files
	full  bool

	replaced int // see message.GrepResult
}

func newSearch(t *tree, in message.GrepArgs) (*search, error) {
	expr := in.Pattern
	if in.Fixed {
		expr = regexp.QuoteMeta(expr)
	}
	flags := "m"
	if in.IgnoreCase {
		flags += "i"
	}
	if in.Multiline {
		flags += "s"
	}
	re, err := regexp.Compile("(?" + flags + ":" + expr + ")")
	if err != nil {
		e := message.Errorf(message.Invalid, "not a regular expression: %v", err)
		e.Hint = "set fixed to search for the text as it is"
		return nil, e
	}
	if in.Glob != "" {
		if err := message.CheckPattern(in.Glob); err != nil {
			return nil, err
		}
	}
	in.Output = cmp.Or(in.Output, message.OutputContent)
	return &search{tree: t, in: in, re: re, before: cmp.Or(in.Before, in.Context), after: cmp.Or(in.After, in.Context),
		limit: cmp.Or(in.Limit, defaultLines), early: map[int]*message.Matched{}}, nil
}

// directory searches the files below p concurrently. The matches are in the order of
// names.
func (s *search) directory(ctx context.Context, p place, glob string) error {
	type job struct {
		n int
		p place
	}
	jobs := make(chan job, 64)
	all := Helpers(ctx, min(maxSearchers, runtime.GOMAXPROCS(0)), func() {
		for j := range jobs {
			var m *message.Matched
			if ctx.Err() == nil && !s.enough() {
				m = s.file(j.p)
			}
			s.take(j.n, m)
		}
	})
	n := 0
	w := walker{ctx: ctx, git: namesGit(p.rel) || namesGit(glob), visit: func(p place, below string, d fs.DirEntry) error {
		if !d.Type().IsRegular() || !wanted(glob, below) {
			return nil
		}
		if s.enough() {
			return errEnough
		}
		jobs <- job{n, p}
		n++
		return nil
	}}
	err := w.walk(p, "", 1)
	close(jobs)
	all.Wait()
	if err == nil {
		err = ctx.Err()
	}
	return err
}

// wanted reports whether the glob matches a file. A glob without a slash matches its last name.
func wanted(glob, below string) bool {
	switch {
	case glob == "":
		return true
	case strings.Contains(glob, "/"):
		return doublestar.MatchUnvalidated(strings.TrimPrefix(glob, "/"), below)
	}
	return doublestar.MatchUnvalidated(glob, below[strings.LastIndexByte(below, '/')+1:])
}

func (s *search) enough() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.full
}

// take adds the matches of the n-th file. Nil means none.
func (s *search) take(n int, m *message.Matched) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.early[n] = m
	for {
		m, ok := s.early[s.next]
		if !ok {
			return
		}
		delete(s.early, s.next)
		s.next++
		if m != nil && !s.full {
			s.keep(m)
		}
	}
}

// file searches one file. A file that cannot be read, is too large or is no text has no
// matches.
func (s *search) file(p place) *message.Matched {
	f, st, err := s.tree.open(p, os.O_RDONLY, message.Reading)
	if err != nil {
		return nil
	}
	defer f.Close()
	if st.Size > maxSearched {
		return nil
	}
	b := make([]byte, 0, st.Size+1)
	for len(b) <= maxSearched {
		n, err := f.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err != nil {
			break
		}
		if len(b) < sniffed || len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		if bytes.IndexByte(b[:min(len(b), sniffed)], 0) >= 0 {
			return nil
		}
	}
	if bytes.IndexByte(b[:min(len(b), sniffed)], 0) >= 0 {
		return nil
	}
	return s.scan(p.rel, b)
}

// scan returns the matching lines of a content. It matches the whole content, and then
// the first line of each match alone, because a match may begin in one line and end in
// another.
func (s *search) scan(rel string, b []byte) *message.Matched {
	m := message.Matched{Path: strings.ToValidUTF8(rel, "\ufffd")}
	var hits [][2]int // ranges of line numbers, from 0
	line, counted := 0, 0
	b = bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n"))
	for at := 0; at < len(b) && (m.Count <= s.limit || s.in.Output == message.OutputCount); {
		loc := s.re.FindIndex(b[at:])
		if loc == nil {
			break
		}
		from, to := at+loc[0], at+loc[1]
		start := bytes.LastIndexByte(b[:from], '\n') + 1
		if start == len(b) { // after the last line
			break
		}
		last := from
		if s.in.Multiline && to > from {
			last = to - 1
		}
		end := len(b)
		if i := bytes.IndexByte(b[last:], '\n'); i >= 0 {
			end = last + i
		}
		at = end + 1
		if !s.in.Multiline && !s.re.Match(b[start:end]) {
			continue
		}
		line += bytes.Count(b[counted:start], []byte("\n"))
		counted = start
		span := bytes.Count(b[start:end], []byte("\n"))
		m.Count++
		hits = append(hits, [2]int{line, line + span})
		if s.in.Output == message.OutputFiles {
			break
		}
		if s.in.Output == message.OutputCount {
			hits = nil
		}
	}
	if m.Count == 0 {
		return nil
	}
	if s.in.Output == message.OutputContent {
		m.Lines = s.lines(b, hits)
	}
	return &m
}

// lines returns the lines of the hits, with their context.
func (s *search) lines(b []byte, hits [][2]int) (out []message.GrepLine) {
	n, size := 0, 0
	for text := range bytes.Lines(b) {
		for len(hits) > 0 && n > hits[0][1]+s.after {
			hits = hits[1:]
		}
		if len(hits) == 0 || size > maxGrepText {
			return out
		}
		if n >= hits[0][0]-s.before && n <= hits[0][0]+maxSpan+s.after {
			hit := n >= hits[0][0] && n <= hits[0][1]
			for _, h := range hits[1:] { // context of one, hit of the next
				if h[0] > n {
					break
				}
				hit = hit || n <= h[1]
			}
			l := message.GrepLine{Line: n + 1, Context: !hit}
			l.Text, l.Replaced = shown(text)
			size += len(l.Text)
			out = append(out, l)
		}
		n++
	}
	return out
}

func shown(line []byte) (s string, replaced int) {
	line = bytes.TrimRight(line, "\r\n")
	kept := begin(line, maxShown)
	s, replaced = printable.OfBytes(kept)
	if more := len(line) - len(kept); more > 0 {
		s += fmt.Sprintf("… [%d bytes cut]", more)
	}
	return s, replaced
}

// keep adds a file's matches to the result, up to its bounds.
func (s *search) keep(m *message.Matched) {
	if s.in.Output != message.OutputContent {
		if s.count == s.limit {
			s.full = true
			return
		}
		s.count++
		s.found = append(s.found, *m)
		return
	}
	kept := m.Lines[:0]
	for _, l := range m.Lines {
		if !l.Context {
			if s.count == s.limit || s.size > maxGrepText {
				s.full = true
				break
			}
			s.count++
		}
		s.size += len(l.Text)
		s.replaced += l.Replaced
		kept = append(kept, l)
	}
	if m.Lines = kept; len(kept) > 0 {
		s.found = append(s.found, *m)
	}
}

func (s *search) result(err error) message.GrepResult {
	r := message.GrepResult{Files: s.found, Truncated: s.full || err != nil, Replaced: s.replaced, Output: s.in.Output}
	if r.Files == nil {
		r.Files = []message.Matched{}
	}
	return r
}
