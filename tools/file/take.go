package file

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools"
)

const opTake = "take"

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
		if _, err := do[takeArgs, takeResult](ctx, f, call, operation{name: opTake}, takeArgs{from, batch}); err != nil {
			return err
		}
	}
	return nil
}

// steps returns what is done, in order.
func (t Taking) steps() (all []takeStep) {
	for _, rel := range t.Gone {
		all = append(all, takeStep{Do: takeRemove, Path: []byte(rel)})
	}
	parked := map[string]string{}
	for _, m := range t.Moved {
		parked[m.To] = path.Join(t.stays(m.From), ".scopefs-"+strings.ToLower(rand.Text()))
		all = append(all, takeStep{Do: takeMove, Path: []byte(m.From), To: []byte(parked[m.To])})
	}
	slices.SortStableFunc(all, func(a, b takeStep) int { return bytes.Compare(b.Path, a.Path) })
	var there []takeStep
	for to, from := range parked {
		there = append(there, takeStep{Do: takeMove, Path: []byte(from), To: []byte(to)})
	}
	for _, rel := range t.There {
		there = append(there, takeStep{Do: takeMake, To: []byte(rel)})
	}
	slices.SortStableFunc(there, func(a, b takeStep) int { return cmp.Or(bytes.Compare(a.To, b.To), strings.Compare(b.Do, a.Do)) })
	all = append(all, there...)
	modes := slices.Sorted(slices.Values(t.There))
	for _, rel := range slices.Backward(modes) { // a directory may deny what was made in it
		all = append(all, takeStep{Do: takeMode, To: []byte(rel)})
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

type takeArgs struct {
	From  string     `json:"from"`
	Steps []takeStep `json:"steps"`
}

// takeStep is one step.
type takeStep struct {
	Do   string `json:"do"`
	Path []byte `json:"path,omitempty"` // JSON has no strings that are not UTF-8
	To   []byte `json:"to,omitempty"`
}

// What a step does.
const (
	takeRemove = "remove"
	takeMove   = "move"
	takeMake   = "make"
	takeMode   = "mode" // the mode of a directory
)

type takeResult struct{}

func (t *tree) take(ctx context.Context, in takeArgs) (r takeResult, err error) {
	for _, s := range in.Steps {
		if err := ctx.Err(); err != nil {
			return r, problem(tools.Internal, string(s.To), "cancelled", "")
		}
		if err := t.takeStep(ctx, in.From, s); err != nil {
			return r, err
		}
	}
	return r, nil
}

func (t *tree) takeStep(ctx context.Context, from string, s takeStep) error {
	switch s.Do {
	case takeRemove:
		p, err := t.at(string(s.Path), writing)
		if err != nil {
			return err
		}
		t.touch(p.full)
		if err = os.Remove(p.full); err != nil && !os.IsNotExist(err) {
			return t.fail(p, err, writing)
		}
		return nil
	case takeMove:
		_, err := t.move(ctx, MoveArgs{From: string(s.Path), To: string(s.To)})
		return err
	}
	to, err := t.at(string(s.To), writing)
	if err != nil {
		return err
	}
	source := place{asked: to.rel, rel: to.rel, full: path.Join(from, to.rel)}
	if s.Do == takeMode {
		err = t.takeMode(source, to)
	} else {
		err = t.takeOver(ctx, source, to)
	}
	if err != nil {
		return t.fail(to, err, writing)
	}
	return nil
}

// takeOver makes one path what it is in the other directory.
func (t *tree) takeOver(ctx context.Context, from, to place) error {
	st, err := t.lstat(from, reading)
	if err != nil {
		return err
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if at, err := t.lstat(to, writing); err == nil && isDir != (at.Mode&unix.S_IFMT == unix.S_IFDIR) {
		if err := os.Remove(to.full); err != nil {
			return err
		}
	}
	if isDir {
		t.touch(to.full)
		if err := os.Mkdir(to.full, 0o700); !os.IsExist(err) {
			return err
		}
		return nil
	}
	c := copier{t, ctx, true, &copyResult{}}
	if err := c.copy(from, to, &st); err != nil {
		return err
	}
	if c.r.Copied == 0 {
		return problem(tools.Invalid, to.rel, "not a regular file: "+typeName(st.Mode), "")
	}
	return nil
}

// takeMode gives a directory the mode that it has in the other one.
func (t *tree) takeMode(from, to place) error {
	st, err := t.lstat(from, reading)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return err
	}
	at, err := t.lstat(to, writing)
	if err != nil || at.Mode&0o777 == st.Mode&0o777 {
		return err
	}
	return os.Chmod(to.full, os.FileMode(st.Mode)&0o777)
}
