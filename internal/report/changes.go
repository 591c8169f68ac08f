package report

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	unified "github.com/rogpeppe/go-internal/diff"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
)

// Changes is what an agent changed, by its history.
type Changes struct {
	Agent   scope.ID     `json:"agent"`
	Root    string       `json:"root,omitempty"` // the further directory of the agent that they are of alone
	Of      string       `json:"of"`             // which changes, in words
	Changes []FileChange `json:"changes"`
	Hash    string       `json:"hash,omitempty"` // of those in a branch, if it was asked for

	held     bool // they are in a branch
	form     ChangesForm
	nothing  string
	Each     bool                  `json:"-"` // equal removals, and git's own files, have a line each
	Compared func(done, total int) `json:"-"` // is called for each file whose contents were compared; nil: nothing is

	parts []part
}

// part are consecutive Changes, of one directory.
type part struct {
	changes int
	texts   func([]history.Version) iter.Seq2[api.Text, error] // reads their contents
}

// FileChange is a change of one object.
type FileChange struct {
	history.Change
	Root    string `json:"root,omitempty"` // the further directory of the agent that has Path, which is absolute
	Held    bool   `json:"held,omitempty"` // it waits for a commit, beside others that do not
	Old     *none  `json:"old,omitempty"`  // hides those of Change: they are for requests
	New     *none  `json:"new,omitempty"`
	Diff    string `json:"diff,omitempty"`
	NoDiff  string `json:"no_diff,omitempty"` // why a file has none
	Added   int    `json:"lines_added,omitempty"`
	Removed int    `json:"lines_removed,omitempty"`

	times int  // how many it stands for
	git   bool // it stands for git's own files
}

type none struct{}

// ChangesForm says how changes are printed.
type ChangesForm int

// The forms.
const (
	ChangesTable ChangesForm = iota
	ChangesNames             // the names alone
	ChangesStat              // the numbers of lines
	ChangesPatch             // diffs
)

// FindChanges returns the selected changes of an agent. of describes the selection.
func FindChanges(ctx context.Context, h *api.History, id scope.ID, sel history.Selection, of string, form ChangesForm) (*Changes, error) {
	list, nothing, err := h.Changes(ctx, sel)
	if err != nil {
		return nil, err
	}
	r := &Changes{Agent: id, Of: of, Changes: []FileChange{}, form: form, nothing: nothing}
	r.add(ctx, h, list)
	return r, nil
}

// Nothing returns why there are no changes; "": another reason than that nothing was changed is not known.
func (r *Changes) Nothing() string { return r.nothing }

// NoChanges returns the report of an empty selection, and why it is empty.
func NoChanges(id scope.ID, of string, form ChangesForm, why string) *Changes {
	return &Changes{Agent: id, Of: of, Changes: []FileChange{}, form: form, nothing: why}
}

// FindDiff returns what differs between an agent's branch and its directory, of what patterns cover. With hashed it has the hash,
// and shows no content that the hash is not of.
func FindDiff(ctx context.Context, h *api.History, id scope.ID, paths []string, form ChangesForm, hashed bool) (*Changes, error) {
	d, err := h.Diff(ctx, paths, hashed)
	if err != nil {
		return nil, err
	}
	r := &Changes{Agent: id, Of: "held", Changes: []FileChange{}, form: form, held: true, nothing: "nothing differs", Hash: d.Hash}
	r.add(ctx, h, d.List)
	return r, nil
}

func (r *Changes) add(ctx context.Context, h *api.History, list []history.Change) {
	for _, c := range list {
		r.Changes = append(r.Changes, FileChange{Change: c})
	}
	texts := func(list []history.Version) iter.Seq2[api.Text, error] { return h.Texts(ctx, list, maxDiff) }
	r.parts = append(r.parts, part{len(list), texts})
}

// Empty returns the report without its changes.
func (r *Changes) Empty() *Changes {
	return &Changes{Agent: r.Agent, Of: r.Of, Changes: []FileChange{}, held: r.held, form: r.form, nothing: r.nothing}
}

// Join adds the changes of a directory of the agent: its own, or the root dir, whose paths become those of the host.
func (r *Changes) Join(dir string, other *Changes) {
	r.parts = append(r.parts, other.parts...)
	if other.held && !r.held {
		for i := range other.Changes {
			other.Changes[i].Held = true
		}
	}
	if dir == "" {
		r.Changes = append(r.Changes, other.Changes...)
		return
	}
	for _, c := range other.Changes {
		c.Root = event.Escape(dir)
		c.Path = inRoot(dir, c.Path)
		if c.From != "" {
			c.From = inRoot(dir, c.From)
		}
		r.Changes = append(r.Changes, c)
	}
}

// inRoot returns the path on the host of an escaped path of a root, escaped as well; without a root the path.
func inRoot(dir, rel string) string {
	if dir == "" {
		return rel
	}
	return strings.TrimSuffix(event.Escape(dir)+"/"+rel, "/")
}

// Complete adds the diffs, for JSON. Print reads them one after another.
func (r *Changes) Complete() {
	if r.form != ChangesStat && r.form != ChangesPatch {
		return
	}
	for i, c := range r.diffs() {
		if r.form == ChangesStat {
			c.Diff = ""
		}
		r.Changes[i] = c
	}
}

// maxDiff bounds a text with a diff, in bytes.
const maxDiff = 4 << 20

// diffs returns the changes, each with its diff or why it has none.
func (r *Changes) diffs() iter.Seq2[int, FileChange] {
	return func(yield func(int, FileChange) bool) {
		compared := make([]comparison, len(r.Changes))
		for i, c := range r.Changes {
			compared[i] = compare(c.Change)
		}
		next, stop := iter.Pull2(r.contents(compared))
		defer stop()
		for i, c := range r.Changes {
			compared[i].add(&c, next)
			if r.Compared != nil {
				r.Compared(i+1, len(r.Changes))
			}
			if !yield(i, c) {
				return
			}
		}
	}
}

// contents returns what is to be compared of the changes, in their order.
func (r *Changes) contents(compared []comparison) iter.Seq2[api.Text, error] {
	return func(yield func(api.Text, error) bool) {
		for _, p := range r.parts {
			var versions []history.Version
			for _, of := range compared[:p.changes] {
				versions = append(versions, of.versions()...)
			}
			compared = compared[p.changes:]
			for text, err := range p.texts(versions) {
				if !yield(text, err) {
					return
				}
			}
		}
	}
}

// comparison says which contents of a change a diff is of.
type comparison struct {
	done        bool            // nothing is to be compared
	why         string          // why it cannot be
	before, now history.Version // zero: none
}

// compare returns what is to be compared of a change.
func compare(c history.Change) (of comparison) {
	if c.Type != "file" && c.Type != "link" || c.Old == c.New {
		return comparison{done: true}
	}
	if c.Kind != history.Added {
		of.before, of.why = c.Old, missing(c.Old, c.OldSize, c.Why)
	}
	if c.Kind != history.Deleted && of.why == "" {
		of.now, of.why = c.New, missing(c.New, c.NewSize, "")
	}
	return of
}

// missing returns why a content cannot be compared; "": it can.
func missing(v history.Version, size int64, unkept string) string {
	switch {
	case v == (history.Version{}):
		return cmp.Or(unkept, "it was not kept")
	case size > maxDiff:
		return "larger than " + sizeText(maxDiff)
	}
	return ""
}

// versions returns those to read.
func (of comparison) versions() (list []history.Version) {
	for _, v := range []history.Version{of.before, of.now} {
		if of.why == "" && v != (history.Version{}) {
			list = append(list, v)
		}
	}
	return list
}

// add adds the diff of a change, or why there is none. next returns the contents of the versions.
func (of comparison) add(c *FileChange, next func() (api.Text, error, bool)) {
	if of.done {
		return
	}
	var texts [2][]byte
	c.NoDiff = of.why
	for i, v := range []history.Version{of.before, of.now} {
		if of.why != "" || v == (history.Version{}) {
			continue
		}
		content, err, _ := next()
		switch {
		case c.NoDiff != "":
		case err != nil:
			c.NoDiff = "it cannot be read: " + err.Error()
		case content.Size > maxDiff:
			c.NoDiff = "larger than " + sizeText(maxDiff)
		case !history.IsText(content.Text):
			c.NoDiff = "no text"
		}
		texts[i] = content.Text
	}
	if c.NoDiff == "" {
		c.Diff, c.Added, c.Removed = diffOf(c.Change, texts[0], texts[1])
	}
}

// diffOf returns a unified diff, and how many lines it adds and removes. The paths of c are escaped: none makes a line of its
// own.
func diffOf(c history.Change, before, after []byte) (text string, added, removed int) {
	from, to := "a/"+strings.TrimPrefix(cmp.Or(c.From, c.Path), "/"), "b/"+strings.TrimPrefix(c.Path, "/")
	switch c.Kind {
	case history.Added:
		from = "/dev/null"
	case history.Deleted:
		to = "/dev/null"
	}
	diff := unified.Diff(from, before, to, after)
	_, diff, _ = bytes.Cut(diff, []byte("\n")) // "diff a b"
	for i, line := range bytes.Split(diff, []byte("\n")) {
		switch {
		case i < 2: // the names
		case bytes.HasPrefix(line, []byte("+")):
			added++
		case bytes.HasPrefix(line, []byte("-")):
			removed++
		}
	}
	return string(diff), added, removed
}

// Print prints the changes in their form, and their hash.
func (r *Changes) Print(w io.Writer) error {
	if err := r.print(w); err != nil || r.Hash == "" {
		return err
	}
	_, err := fmt.Fprintf(w, "to take or drop these, or nothing if they have changed: --shown %s\n", r.Hash)
	return err
}

func (r *Changes) print(w io.Writer) error {
	switch r.form {
	case ChangesNames:
		for _, c := range r.folded() {
			if _, err := fmt.Fprintln(w, printable.Text(c.Path)); err != nil {
				return err
			}
		}
		return nil
	case ChangesPatch:
		return r.printDiffs(w)
	}
	of := string(r.Agent)
	if r.Root != "" {
		of += ", " + printable.Text(r.Root)
	}
	if r.Of != string(r.Agent) { // the branch held
		of += ", " + printable.Text(r.Of)
	}
	if _, err := fmt.Fprintf(w, "%s: %s\n", of, r.count()); err != nil {
		return err
	}
	if r.form == ChangesStat {
		return r.printStat(w)
	}
	var table Table
	switch {
	case len(r.Changes) == 0:
	case r.held:
		table.Row("CHANGE", "SIZE", "PATH")
		for _, c := range r.folded() {
			table.Row(c.Kind, sizes(c.Change), c.name())
		}
		return table.Print(w)
	default:
		table.Row("CHANGE", "SIZE", "LAST", "BY", "CALL", "PATH")
	}
	for _, c := range r.folded() {
		name, last := c.name(), c.Last.Local().Format(time.DateTime)
		if c.Held {
			name, last = name+" (held)", "-"
		}
		table.Row(c.Kind, sizes(c.Change), last, list(c.By), list(c.Calls), name)
	}
	return table.Print(w)
}

// name returns what changed does, and for how many the change stands.
func (c *FileChange) name() string {
	switch {
	case c.git:
		return changed(c.Change) + "/* (" + counted(c.times, "file") + ")"
	case c.times > 1:
		return changed(c.Change) + fmt.Sprintf(" (%d times)", c.times)
	}
	return changed(c.Change)
}

// folded returns the changes, and one for removals of a path, which differ in nothing but who made them and when, and for git's own files
// without a mark.
func (r *Changes) folded() (all []FileChange) {
	at := map[string]int{}
	for _, c := range r.Changes {
		c.times = 1
		var dir string
		if dir, c.git = history.InGit(c.Path); c.git && !r.Each && r.form != ChangesNames && c.Why == "" && c.Conflict == "" {
			c.Change = history.Change{Kind: history.Changed, Path: dir, Type: "file", OldSize: -1, NewSize: -1,
				Last: c.Last, By: c.By, Calls: c.Calls}
		} else {
			c.git = false
		}
		key := changed(c.Change)
		if c.git {
			key += "/*"
		}
		i, found := at[key]
		if folds := c.git || c.Kind == history.Deleted && !c.Held && !r.Each; !folds || !found {
			if folds {
				at[key] = len(all)
			}
			all = append(all, c)
			continue
		}
		was := all[i]
		if was.Last.After(c.Last) {
			c, was = was, c
		}
		c.times = all[i].times + 1
		c.By, c.Calls = union(was.By, c.By), union(was.Calls, c.Calls)
		all[i] = c
	}
	return all
}

// union returns the words of two lists, each once.
func union(a, b []string) []string {
	all := slices.Clone(a)
	for _, word := range b {
		if !slices.Contains(all, word) {
			all = append(all, word)
		}
	}
	return all
}

// count returns how many changes there are, and how many cannot be taken back.
func (r *Changes) count() string {
	unkept, held := 0, 0
	for _, c := range r.Changes {
		if c.Why != "" {
			unkept++
		}
		if c.Held {
			held++
		}
	}
	if len(r.Changes) == 0 {
		return cmp.Or(r.nothing, "nothing was changed")
	}
	text := counted(len(r.Changes), "change")
	if held > 0 {
		text += fmt.Sprintf(", %d held", held)
	}
	if unkept > 0 {
		text += fmt.Sprintf(", %d not kept", unkept)
	}
	return text
}

// counted returns a number and a noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func (r *Changes) printStat(w io.Writer) error {
	var table Table
	added, removed := 0, 0
	for _, c := range r.diffs() {
		lines := sizes(c.Change)
		if c.Diff != "" {
			lines = fmt.Sprintf("+%d -%d", c.Added, c.Removed)
		}
		added, removed = added+c.Added, removed+c.Removed
		table.Row(c.Kind, lines, changed(c.Change))
	}
	if err := table.Print(w); err != nil || len(r.Changes) == 0 {
		return err
	}
	_, err := fmt.Fprintf(w, "%s added, %s removed\n", counted(added, "line"), counted(removed, "line"))
	return err
}

// printDiffs prints a line for each change, and its diff.
func (r *Changes) printDiffs(w io.Writer) error {
	for _, c := range r.diffs() {
		line := fmt.Sprintf("%s %s", c.Kind, changed(c.Change))
		if c.Diff == "" && c.Type == "file" {
			line += ": " + sizes(c.Change)
			if c.NoDiff != "" && c.NoDiff != c.Why {
				line += " (no diff: " + c.NoDiff + ")"
			}
		}
		if _, err := fmt.Fprintf(w, "%s\n%s", printable.Text(line), printable.Lines(c.Diff)); err != nil {
			return err
		}
	}
	return nil
}

// changed returns the path of a change, and what is particular about it.
func changed(c history.Change) string {
	name := c.Path
	if c.Type == "directory" {
		name += "/"
	}
	name = quoted(name)
	if c.From != "" {
		name += " (was " + quoted(c.From) + ")"
	}
	if c.Type != "directory" && c.Type != "file" {
		name += " (" + c.Type + ")"
	}
	switch {
	case !c.Mode:
	case c.OldMode != c.NewMode:
		name += fmt.Sprintf(" (mode %04o, was %04o)", c.NewMode, c.OldMode)
	case c.Kind == history.ModeChanged:
		name += " (times, owner or attributes)"
	}
	if c.Why != "" {
		name += " (not kept: " + c.Why + ")"
	}
	if c.Conflict != "" {
		name += " (conflict: " + conflict(c) + ")"
	}
	return name
}

// sizes returns the size of a file before and after a change.
func sizes(c history.Change) string {
	switch {
	case c.Type != "file" || c.OldSize < 0 && c.NewSize < 0:
		return "-"
	case c.Kind == history.Added || c.OldSize < 0 || c.OldSize == c.NewSize:
		return sizeText(c.NewSize)
	case c.Kind == history.Deleted || c.NewSize < 0:
		return sizeText(c.OldSize)
	}
	return sizeText(c.OldSize) + " > " + sizeText(c.NewSize)
}

// sizeText returns bytes in the largest unit that gives at least 1.
func sizeText(n int64) string {
	if n < 1<<10 {
		return fmt.Sprint(n)
	}
	size, unit := float64(n)/(1<<10), "KiB"
	for _, next := range []string{"MiB", "GiB", "TiB"} {
		if size < 1<<10 {
			break
		}
		size, unit = size/(1<<10), next
	}
	return fmt.Sprintf("%.1f%s", size, unit)
}

// list returns words separated by commas.
func list(words []string) string { return cmp.Or(strings.Join(words, ","), "-") }
