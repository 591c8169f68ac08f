package branch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Drop is Discard for a branch with Roots.Held: it removes from Upper what the patterns cover. What a removed directory had
// comes back as a whole. The overlay has to be mounted again.
func (b *Branch) Drop(ctx context.Context, paths []string, hash string) (done, total int, err error) {
	d, err := b.differ(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer d.release()
	needs := make([][]int, len(d.entries))
	for i, list := range dependencies(d.entries) {
		for _, j := range list {
			needs[j] = append(needs[j], i)
		}
	}
	entries, err := b.agreed(ctx, d.entries, paths, needs, hash)
	if err != nil {
		return 0, 0, err
	}
	d.release()
	err = b.drop(entries, hash != "")
	return len(entries), len(entries), err
}

// settle removes from Upper what a commit has taken, for a branch with Roots.Held: changes of Base show from then on. What
// clients have written since stays, and so does what cannot be removed. The overlay has to be mounted again.
func (b *Branch) settle(taken []string) error {
	if b.Held == nil {
		return nil
	}
	d, err := b.differ(context.Background())
	if err != nil {
		return err
	}
	left := map[string]bool{}
	for _, e := range d.entries {
		left[e.Path] = true
	}
	slices.Sort(taken)
	for _, rel := range slices.Backward(slices.Compact(taken)) {
		if left[rel] {
			continue
		}
		if err := b.dropAt(rel, true); fatal(err) {
			return fmt.Errorf("%s: %w", rel, err)
		}
	}
	return nil
}

// drop removes the objects of entries from Upper, and directories that have nothing more. With bound it leaves what has changed
// since.
func (b *Branch) drop(entries []Entry, bound bool) (err error) {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(b.Path, a.Path) })
	for _, e := range entries {
		if failed := e.unchanged(b.Upper, e.Path); bound && failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", e.Path, failed))
			continue
		}
		if e.new.IsDir() && e.fixed { // it cannot be read
			if failed := b.clearAt(e.Path); failed != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", e.Path, failed))
				continue
			}
		}
		if failed := b.dropAt(e.Path, e.new.IsDir() && e.Kind != history.Deleted); failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", e.Path, failed))
		}
	}
	return err
}

func (b *Branch) dropAt(rel string, directory bool) error {
	st, err := b.Upper.Stat(rel)
	if errors.Is(err, unix.EACCES) {
		defer b.Upper.Lift(parentOf(rel), unix.S_IRWXU)()
		st, err = b.Upper.Stat(rel)
	}
	if errors.Is(err, beneath.ErrStale) {
		return nil // below a whiteout
	}
	if err != nil {
		return err
	}
	if err = b.unlinkAt(rel, st.IsDir()); errors.Is(err, unix.EACCES) { // the client lets nobody write to the directory
		defer b.Upper.Lift(parentOf(rel), unix.S_IRWXU)()
		err = b.unlinkAt(rel, st.IsDir())
	}
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
		if b.unlinkAt(at, true) != nil {
			return nil
		}
	}
	return err
}

// clearAt removes a directory of Upper, and all below it, whatever its modes and depth are.
func (b *Branch) clearAt(rel string) error {
	defer b.Upper.Lift(rel, unix.S_IRWXU)()
	dir, err := b.Upper.Dir(parentOf(rel))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := Remove(b.State, droppedName); err != nil { // of a process that was killed
		return err
	}
	if err := dir.Rename(baseOf(rel), b.top, droppedName, unix.RENAME_NOREPLACE); err != nil {
		return err
	}
	return Remove(b.State, droppedName)
}

// unlinkAt removes an object, or an empty directory, of Upper.
func (b *Branch) unlinkAt(rel string, directory bool) error {
	dir, err := b.Upper.Dir(parentOf(rel))
	if err != nil {
		return err
	}
	defer dir.Close()
	if directory {
		return dir.Rmdir(baseOf(rel))
	}
	return dir.Unlink(baseOf(rel))
}
