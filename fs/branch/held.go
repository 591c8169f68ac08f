package branch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
)

// Drop is Discard for a branch with Roots.Held: it removes from Upper what the patterns cover. What a removed directory had
// comes back as a whole. The overlay has to be mounted again.
func (b *Branch) Drop(ctx context.Context, paths []string) (done, total int, err error) {
	d, err := b.differ(ctx)
	if err != nil {
		return 0, 0, err
	}
	needs := make([][]int, len(d.entries))
	for i, list := range dependencies(d.entries) {
		for _, j := range list {
			needs[j] = append(needs[j], i)
		}
	}
	entries, err := selected(d.entries, paths, needs)
	if err != nil {
		return 0, 0, err
	}
	err = b.drop(entries)
	return len(entries), len(entries), err
}

// Settle removes from Upper what a commit has taken, for a branch with Roots.Held: changes of Base show from then on. What
// clients have written since stays. The overlay has to be mounted again.
func (b *Branch) Settle(ctx context.Context, taken []Entry) error {
	d, err := b.differ(ctx)
	if err != nil {
		return err
	}
	left := map[string]bool{}
	for _, e := range d.entries {
		left[e.Path] = true
	}
	return b.drop(slices.DeleteFunc(slices.Clone(taken), func(e Entry) bool { return left[e.Path] }))
}

// drop removes the objects of entries from Upper, and directories that have nothing more.
func (b *Branch) drop(entries []Entry) (err error) {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(b.Path, a.Path) })
	for _, e := range entries {
		if failed := b.dropAt(e.Path, e.new.IsDir() && e.Kind != history.Deleted); failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", e.Path, failed))
		}
	}
	return err
}

func (b *Branch) dropAt(rel string, directory bool) error {
	st, err := b.Upper.Stat(rel)
	if err != nil {
		return nil // below a whiteout
	}
	dir, err := b.Upper.Dir(parentOf(rel))
	if err != nil {
		return err
	}
	if st.IsDir() {
		err = dir.Rmdir(baseOf(rel))
	} else {
		err = dir.Unlink(baseOf(rel))
	}
	dir.Close()
	if was, failed := b.Base.Stat(rel); err == unix.ENOTEMPTY && directory && failed == nil && was.IsDir() {
		return CopyAttributes(b.Base, rel, b.Upper, rel)
	}
	if err == unix.ENOTEMPTY || err == unix.ENOENT {
		return nil
	}
	for at := parentOf(rel); err == nil && at != ""; at = parentOf(at) {
		if was, failed := b.Base.Stat(at); failed != nil || !was.IsDir() {
			return nil // the branch has made it
		}
		if dir, err := b.Upper.Dir(parentOf(at)); err == nil {
			err = dir.Rmdir(baseOf(at))
			dir.Close()
			if err != nil {
				return nil
			}
		}
	}
	return err
}
