package file

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Unfinished keeps which calls may leave a temporary file when their worker is
// killed. The file's name holds the call's token, which nobody can guess.
type Unfinished interface {
	Begin(token, path string)
	End(token string, clean bool)
	// Left calls clean for each call that ended and was not clean, and drops it
	// when clean returns true.
	Left(clean func(token, path string) bool)
}

// A leaver is the arguments of a call that makes temporary files: beside the path
// or, when that is a directory, anywhere below it.
type leaver interface {
	leaves() (path string, makes bool)
}

func (a writeArgs) leaves() (string, bool) { return a.Path, a.Mode != modeAppend }
func (a editArgs) leaves() (string, bool)  { return a.Path, !a.DryRun }
func (a copyArgs) leaves() (string, bool)  { return a.To, true }

// note begins a call in Unfinished. Call end when the worker has answered, or will
// not any more.
func (w *Worker) note(in any) (token string, end func(answered bool)) {
	l, ok := in.(leaver)
	if !ok {
		return "", func(bool) {}
	}
	path, makes := l.leaves()
	if !makes {
		return "", func(bool) {}
	}
	token = rand.Text()
	if w.Unfinished == nil {
		return token, func(bool) {}
	}
	w.Unfinished.Begin(token, path)
	return token, func(answered bool) { w.Unfinished.End(token, answered) }
}

// opSweep removes the temporary file of a call that was killed.
const opSweep = "sweep"

type sweepArgs struct {
	Path  string `json:"path"`
	Token string `json:"token"`
}

// sweepTimeout is how long the first call of a worker waits for the removal of
// what earlier ones left. It goes on beside it.
const sweepTimeout = time.Second

// sweep has a worker that was just started remove what calls have left.
func (w *Worker) sweep(c *conn) {
	if w.Unfinished == nil {
		return
	}
	done := make(chan struct{})
	c.done.Go(func() {
		defer close(done)
		w.Unfinished.Left(func(token, path string) bool {
			_, err := c.exchange(context.Background(), request{Op: opSweep, Args: sweepArgs{path, token}}, nil)
			return err == nil // answered: what it could not remove it never will
		})
	})
	select {
	case <-done:
	case <-time.After(sweepTimeout):
	}
}

func (t *tree) sweep(ctx context.Context, in sweepArgs) (struct{}, error) {
	p, err := t.at(in.Path, writing)
	if err != nil || in.Token == "" {
		return struct{}{}, err
	}
	t.temp = in.Token
	t.remove(p)
	if target, there, err := t.target(p); err == nil && there {
		t.remove(target)
	}
	if st, err := t.lstat(p, writing); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return struct{}{}, nil
	}
	w := walker{ctx: ctx, git: true, visit: func(p place, _ string, d fs.DirEntry) error {
		if d.Name() == t.tempName() {
			t.remove(p)
		}
		return nil
	}}
	if err := w.walk(p, "", 1); err != nil && !errors.Is(err, errEnough) {
		return struct{}{}, t.fail(p, err, writing)
	}
	return struct{}{}, nil
}

// remove removes the call's temporary beside a place.
func (t *tree) remove(p place) {
	t.touch(p.full)
	_ = os.Remove(t.tempBeside(p))
}

func (t *tree) tempName() string { return ".scopefs-" + t.temp }

// tempBeside is a name that nobody has, in the directory of p.
func (t *tree) tempBeside(p place) string { return filepath.Dir(p.full) + "/" + t.tempName() }
