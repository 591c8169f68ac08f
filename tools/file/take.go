package file

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"path"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/tools/file/message"
)

// Taking lists the changes that [Files.Take] takes over. Its paths are relative to the view.
type Taking struct {
	Gone  []string // what is removed: a directory must be empty by then
	Moved []Move   // directories of the view that get another path, with what is in them
	There []string // what is as in the other directory: of a directory itself alone
}

// Move is a directory's old and new path.
type Move struct{ From, To string }

// takeBatch is how many steps one request of Take has. A request has a time to end.
const takeBatch = 64

// Take makes paths of the view what they are in another directory, which the worker's sandbox shows at from. What leaves its
// path leaves it first, the deepest path before others; then each path gets its object, parents first. After an error a part
// has been done. Owners, times and extended attributes are not taken.
func (f *Files) Take(ctx context.Context, call, from string, t Taking) error {
	for batch := range slices.Chunk(t.steps(), takeBatch) {
		if _, err := do[message.TakeArgs, message.TakeResult](ctx, f, call, operation{name: message.OpTake},
			message.TakeArgs{From: from, Steps: batch}); err != nil {
			return err
		}
	}
	return nil
}

// steps returns what is done, in order.
func (t Taking) steps() (all []message.TakeStep) {
	for _, rel := range t.Gone {
		all = append(all, message.TakeStep{Do: message.TakeRemove, Path: []byte(rel)})
	}
	parked := map[string]string{}
	for _, m := range t.Moved {
		parked[m.To] = path.Join(t.stays(m.From), ".scopefs-"+strings.ToLower(rand.Text()))
		all = append(all, message.TakeStep{Do: message.TakeMove, Path: []byte(m.From), To: []byte(parked[m.To])})
	}
	slices.SortStableFunc(all, func(a, b message.TakeStep) int { return bytes.Compare(b.Path, a.Path) })
	var there []message.TakeStep
	for to, from := range parked {
		there = append(there, message.TakeStep{Do: message.TakeMove, Path: []byte(from), To: []byte(to)})
	}
	for _, rel := range t.There {
		there = append(there, message.TakeStep{Do: message.TakeMake, To: []byte(rel)})
	}
	slices.SortStableFunc(there, func(a, b message.TakeStep) int { return cmp.Or(bytes.Compare(a.To, b.To), strings.Compare(b.Do, a.Do)) })
	all = append(all, there...)
	modes := slices.Sorted(slices.Values(t.There))
	for _, rel := range slices.Backward(modes) { // a directory may deny what was made in it
		all = append(all, message.TakeStep{Do: message.TakeMode, To: []byte(rel)})
	}
	return all
}

// stays returns the nearest directory above a path that keeps its own path.
func (t Taking) stays(rel string) string {
	dirs := strings.Split(rel, "/")
	for i := 1; i < len(dirs); i++ {
		at := strings.Join(dirs[:i], "/")
		if slices.Contains(t.Gone, at) || slices.ContainsFunc(t.Moved, func(m Move) bool { return m.From == at }) {
			return strings.Join(dirs[:i-1], "/")
		}
	}
	return path.Dir(rel)
}
