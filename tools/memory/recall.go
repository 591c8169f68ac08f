package memory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/scopefs/scopefs/tools"
)

const (
	defaultFound = 5
	maxWords     = 16
	maxExcerpt   = 8 << 10 // bytes returned of a note found by words; a note found by name is whole
)

// recallArgs are the arguments of recall.
type recallArgs struct {
	Query string `json:"query" jsonschema:"words, or the name of a note" limit:"len=500"`
	Limit int    `json:"limit,omitempty" jsonschema:"how many notes" limit:"min=1,max=20,default=5"`
}

// Subject returns the directory of the notes and the query.
func (in recallArgs) Subject() (rel, target string) { return dir, in.Query }

// recalled is the result of recall, the best match first.
type recalled struct {
	Notes []foundNote `json:"notes" limit:"items=20"`
}

// foundNote is a note with its text.
type foundNote struct {
	Name      string    `json:"name"`
	Modified  time.Time `json:"modified"`
	Text      string    `json:"text" limit:"len=65536"`
	Truncated bool      `json:"truncated,omitempty" jsonschema:"text is cut: recall the note by its name"`
}

// Content returns the notes, each below a heading with its name.
func (o recalled) Content() []tools.Content {
	if len(o.Notes) == 0 {
		return []tools.Content{{Text: "No note contains these words."}}
	}
	var b strings.Builder
	for _, n := range o.Notes {
		fmt.Fprintf(&b, "# %s (%s)\n%s\n", n.Name, n.Modified.Format(time.DateOnly), n.Text)
		if n.Truncated {
			b.WriteString("[cut: there is more]\n")
		}
		b.WriteString("\n")
	}
	return []tools.Content{{Text: b.String()}}
}

// match is a note and its rank.
type match struct {
	note
	words int // distinct words that occur
	count int // matching lines of all words, and 3 for each word in the name
}

// recall returns the best matches with their text. A note that was deleted since
// the search is left out.
func (m memory) recall(ctx context.Context, env tools.Env, in recallArgs) (out recalled, err error) {
	words := slices.Compact(slices.Sorted(slices.Values(strings.Fields(strings.ToLower(in.Query)))))
	if len(words) == 0 || len(words) > maxWords {
		return out, tools.Errorf(tools.Invalid, "the query has %d words: want 1 to %d", len(words), maxWords)
	}
	out.Notes = []foundNote{}
	notes, err := m.notes(ctx, env)
	if err != nil || len(notes) == 0 {
		return out, err
	}
	matches, err := m.match(ctx, env, notes, words)
	if err != nil {
		return out, err
	}
	for _, n := range matches[:min(len(matches), cmp.Or(in.Limit, defaultFound))] {
		bytes := maxExcerpt
		if n.Name == in.Query {
			bytes = maxText
		}
		found, err := m.read(ctx, env, n.note, bytes)
		if absent(err) {
			continue
		} else if err != nil {
			return out, err
		}
		out.Notes = append(out.Notes, found)
	}
	return out, nil
}

// match returns the notes that contain any of the words. It sorts by: name equal
// to the only word, distinct words, count, modification time (latest first), name.
func (m memory) match(ctx context.Context, env tools.Env, notes []note, words []string) ([]match, error) {
	all := make(map[string]*match, len(notes))
	for _, n := range notes {
		all[n.Name] = &match{note: n}
	}
	for _, word := range words {
		var hits struct {
			Files []struct {
				Path  string
				Count int
			}
		}
		err := m.files.Call(ctx, env, "grep", map[string]any{
			"pattern": word, "path": dir, "glob": "*.md", "fixed": true, "ignore_case": true, "output": "count", "limit": 5000,
		}, &hits)
		if err != nil && !absent(err) {
			return nil, err
		}
		lines := map[string]int{}
		for _, f := range hits.Files {
			lines[nameOf(f.Path)] += f.Count
		}
		for name, n := range all {
			count := lines[name]
			if strings.Contains(name, word) {
				count += 3
			}
			if n.count += count; count > 0 {
				n.words++
			}
		}
	}
	var found []match
	for _, n := range all {
		if n.words > 0 {
			found = append(found, *n)
		}
	}
	named := func(n match) int {
		if len(words) == 1 && n.Name == words[0] {
			return 1
		}
		return 0
	}
	slices.SortFunc(found, func(a, b match) int {
		return cmp.Or(cmp.Compare(named(b), named(a)), cmp.Compare(b.words, a.words), cmp.Compare(b.count, a.count),
			b.Modified.Compare(a.Modified), strings.Compare(a.Name, b.Name))
	})
	return found, nil
}

func (m memory) read(ctx context.Context, env tools.Env, n note, bytes int) (foundNote, error) {
	var r struct {
		Text      string
		Truncated bool
	}
	err := m.files.Call(ctx, env, "read_file", map[string]any{"path": file(n.Name), "limit": 100_000}, &r)
	if len(r.Text) > bytes {
		for bytes > 0 && !utf8.RuneStart(r.Text[bytes]) {
			bytes--
		}
		r.Text, r.Truncated = r.Text[:bytes], true
	}
	return foundNote{n.Name, n.Modified, r.Text, r.Truncated}, err
}
