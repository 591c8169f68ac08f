package branch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"maps"
	"slices"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Entry is one difference between the branch and Base.
type Entry struct {
	Kind     history.ChangeKind `json:"kind"`
	Path     string             `json:"path"`           // in the branch; of one that was removed, in Base
	From     string             `json:"from,omitempty"` // moved: its path in Base
	Type     string             `json:"type"`           // file, directory, link, other
	Mode     bool               `json:"mode,omitempty"` // the owner, permissions or extended attributes differ
	Content  bool               `json:"content,omitempty"`
	OldMode  uint32             `json:"old_mode,omitempty"`
	NewMode  uint32             `json:"new_mode,omitempty"`
	OldSize  int64              `json:"old_size"` // -1: it is not there
	NewSize  int64              `json:"new_size"`
	Link     string             `json:"link,omitempty"`     // the text of the new link
	Conflict string             `json:"conflict,omitempty"` // why it cannot be taken without a decision

	Merge string `json:"merge,omitempty"` // of a Conflict: MergeClean, or why a commit cannot merge it; Merged

	base     string        // its path in Base; "" if it is added
	old, new beneath.Stat  // in Base and in the branch
	fixed    bool          // no option overrides Conflict
	at       string        // its path in the branch: also of one that was removed
	attr     *journal.Attr // of a commit that sets them without a copy
	origin   *origin       // of a Conflict: what the path was before the branch changed it; nil: unknown
	sum      []byte        // SHA-256 of the new content; nil: the hash of the Set is without it
	merged   []byte        // the hash of the content that Merge takes, and its size
	size     int64
}

// Set is what differs, sorted by path.
type Set struct {
	Entries []Entry `json:"entries"`
	Hash    string  `json:"hash,omitempty"` // SHA-256 of the entries, and of new and merged content, in hex
}

// ErrTooLarge reports that what differs is more than the caller wants to read.
var ErrTooLarge = errors.New("the changes are too large")

// Sum returns the SHA-256 of the new content in hex, if the hash of the Set is of it.
func (e *Entry) Sum() string { return hex.EncodeToString(e.sum) }

// Diff returns what differs, of what the patterns of scope.PathRule cover: all of it without patterns. With hashed it reads
// every new content.
func (b *Branch) Diff(ctx context.Context, paths []string, hashed bool) (*Set, error) {
	s, release, err := b.list(ctx, paths)
	defer release()
	if err == nil && hashed {
		err = b.hashMerged(ctx, s, nil)
	}
	return s, err
}

// Show is a hashed Diff that calls see for each entry, with the content of a new file that has at most keep bytes: the bytes
// that the hash is of, so that a client that changes the file meanwhile cannot have other ones shown. Entries with more than
// limit bytes of new content are [ErrTooLarge].
func (b *Branch) Show(ctx context.Context, paths []string, limit, keep int64, see func(e *Entry, content []byte, kept bool)) (*Set, error) {
	s, release, err := b.list(ctx, paths)
	defer release()
	if err != nil {
		return nil, err
	}
	for _, e := range s.Entries {
		if e.Content && e.new.IsRegular() {
			limit -= e.NewSize
		}
	}
	if limit < 0 {
		return s, ErrTooLarge
	}
	return s, b.hashMerged(ctx, s, &shower{keep, see})
}

// shower is what Show passes to see.
type shower struct {
	keep int64
	see  func(*Entry, []byte, bool)
}

// list returns what differs. The caller calls release when it has read the branch.
func (b *Branch) list(ctx context.Context, paths []string) (s *Set, release func(), err error) {
	if err := b.refresh(false); err != nil {
		return nil, func() {}, err
	}
	d, err := b.differ(ctx)
	if err != nil {
		return nil, func() {}, err
	}
	entries, err := selected(d.entries, paths, dependencies(d.entries))
	return &Set{Entries: entries}, d.release, err
}

func (b *Branch) hashMerged(ctx context.Context, s *Set, show *shower) (err error) {
	s.Hash, err = b.hash(ctx, s.Entries, show, func(_ int, e *Entry) (*beneath.Root, string) { return b.Merged, e.Path })
	return err
}

// hash returns the hash of entries. at returns where their new objects are.
func (b *Branch) hash(ctx context.Context, entries []Entry, show *shower, at func(int, *Entry) (*beneath.Root, string)) (string, error) {
	h := sha256.New()
	for i := range entries {
		e := &entries[i]
		if err := ctx.Err(); err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %q %q %s %o %o %d %d %q %q\n", e.Kind, e.Path, e.From, e.Type, e.OldMode, e.NewMode,
			e.OldSize, e.NewSize, e.Link, e.Conflict)
		if e.Kind == history.Deleted {
			show.call(e, nil)
			continue
		}
		fmt.Fprintf(h, "%d %d\n", e.new.Uid, e.new.Gid)
		if !e.new.IsRegular() && !e.new.IsDir() {
			show.call(e, nil)
			continue
		}
		root, rel := at(i, e)
		var kept *bytes.Buffer
		if show != nil && e.Content && e.new.IsRegular() && e.NewSize <= show.keep {
			kept = &bytes.Buffer{}
		}
		if err := hashObject(h, root, rel, e, kept); err != nil && !e.fixed {
			return "", fmt.Errorf("%s: %w", e.Path, err)
		}
		if e.merged != nil {
			fmt.Fprintf(h, "merged %x\n", e.merged)
		}
		show.call(e, kept)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (s *shower) call(e *Entry, content *bytes.Buffer) {
	switch {
	case s == nil:
	case content == nil:
		s.see(e, nil, false)
	default:
		s.see(e, content.Bytes(), true)
	}
}

// hashObject adds the extended attributes of an object, and the content that a commit copies, which it also writes to kept.
func hashObject(h hash.Hash, root *beneath.Root, rel string, e *Entry, kept *bytes.Buffer) error {
	if e.attr != nil {
		hashXattrs(h, e.attr.XAttrs)
		return nil
	}
	st, err := root.Stat(rel)
	if err != nil {
		return err
	}
	f, err := plan.OpenRead(root, rel, &st, true)
	if err != nil {
		return err
	}
	defer f.Close()
	if st.ID() == e.new.ID() {
		e.new.Ctime = st.Ctime
	}
	hashXattrs(h, f.UserXattrs(plan.MaxXattrs))
	if !e.new.IsRegular() || !e.copied() {
		return nil
	}
	content := sha256.New()
	buffer := make([]byte, 256<<10)
	for at := int64(0); ; {
		n, err := f.ReadAt(buffer, at)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		content.Write(buffer[:n])
		if kept != nil {
			kept.Write(buffer[:n])
		}
		if at += int64(n); at > e.NewSize { // a client that appends would prolong this without end
			return ErrChanged
		}
	}
	e.sum = content.Sum(nil)
	fmt.Fprintf(h, "%x\n", e.sum)
	return nil
}

func hashXattrs(h hash.Hash, all map[string][]byte) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(h, "%q %q\n", name, all[name])
	}
}

// selected returns the entries that patterns cover, and those that they need.
func selected(all []Entry, patterns []string, needs [][]int) ([]Entry, error) {
	if len(patterns) == 0 || slices.Contains(patterns, "**") {
		return all, nil
	}
	picked, err := covered(all, patterns, needs)
	if err != nil {
		return nil, err
	}
	return only(all, func(i int) bool { return picked[i] }), nil
}

// covered reports which entries selected returns.
func covered(all []Entry, patterns []string, needs [][]int) ([]bool, error) {
	covers, err := scope.Covering(patterns)
	if err != nil {
		return nil, fmt.Errorf("path: %w", err)
	}
	picked := make([]bool, len(all))
	for i, e := range all {
		picked[i] = covers(e.Path) || covers(e.From)
	}
	var todo []int
	for i := range picked {
		if picked[i] {
			todo = append(todo, i)
		}
	}
	for ; len(todo) > 0; todo = todo[1:] {
		for _, j := range needs[todo[0]] {
			if !picked[j] {
				picked[j], todo = true, append(todo, j)
			}
		}
	}
	return picked, nil
}

// only returns the entries whose numbers are meant.
func only(all []Entry, meant func(int) bool) []Entry {
	list := []Entry{}
	for i := range all {
		if meant(i) {
			list = append(list, all[i])
		}
	}
	return list
}

// dependencies returns for each entry those without which it cannot be taken.
func dependencies(all []Entry) [][]int {
	made, left := map[string]int{}, map[string]int{} // paths of the branch that get an object, paths of Base that lose theirs
	for i, e := range all {
		if e.Kind == history.Added || e.Kind == history.Renamed {
			made[e.Path] = i
		}
		if e.leaves() {
			left[e.base] = i
		}
	}
	needs := make([][]int, len(all))
	for i, e := range all {
		if e.Kind != history.Deleted {
			for dir := beneath.Parent(e.Path); dir != ""; dir = beneath.Parent(dir) {
				if j, ok := made[dir]; ok {
					needs[i] = append(needs[i], j)
					break
				}
			}
		}
		if j, ok := left[e.Path]; ok && j != i && (e.Kind == history.Added || e.Kind == history.Renamed) {
			needs[i] = append(needs[i], j) // it makes room
		}
		if !e.leaves() {
			continue
		}
		for dir := beneath.Parent(e.base); dir != ""; dir = beneath.Parent(dir) {
			if j, ok := left[dir]; ok { // the directory goes after it
				needs[j] = append(needs[j], i)
				break
			}
		}
	}
	return needs
}

// copied reports whether the new version is a copy: also one with other attributes, if the object of Base has other names.
func (e *Entry) copied() bool {
	if e.new.IsDir() {
		return e.Kind == history.Added
	}
	return e.Kind != history.Deleted && (e.Content || e.Mode && e.old.Nlink > 1)
}

// leaves reports whether the entry takes an object from its place in Base.
func (e *Entry) leaves() bool { return e.Kind == history.Deleted || e.Kind == history.Renamed }
