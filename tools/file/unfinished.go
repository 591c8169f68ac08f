package file

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools/file/worker"
)

// Unfinished records the calls that may leave a temporary file when their worker is
// killed. The file's name holds the call's token, which is random.
type Unfinished interface {
	Begin(token, path string)
	End(token string, clean bool)
	// Left calls clean for each call that may have left a file, and forgets the call when
	// clean returns true.
	Left(clean func(token, path string) bool)
}

// A leaver is the arguments of an operation that creates temporary files: beside the path
// or, if that is a directory, anywhere below it.
type leaver interface {
	leaves() (path string, makes bool)
}

func (a WriteArgs) leaves() (string, bool) { return a.Path, a.Mode != modeAppend }
func (a EditArgs) leaves() (string, bool)  { return a.Path, !a.DryRun }
func (a copyArgs) leaves() (string, bool)  { return a.To, true }

// note records the begin of a call in Unfinished. The caller calls end when the worker has replied or died.
func (f *Files) note(in any) (token string, end func(answered bool)) {
	l, ok := in.(leaver)
	if !ok {
		return "", func(bool) {}
	}
	path, makes := l.leaves()
	if !makes {
		return "", func(bool) {}
	}
	token = rand.Text()
	if f.Unfinished == nil {
		return token, func(bool) {}
	}
	f.Unfinished.Begin(token, path)
	return token, func(answered bool) { f.Unfinished.End(token, answered) }
}

// opSweep removes the temporary file of a killed call.
const opSweep = "sweep"

type sweepArgs struct {
	Path  string `json:"path"`
	Token string `json:"token"`
}

// sweep removes the temporary files of killed calls, in a new worker.
func (f *Files) sweep(send func(worker.Request) error) {
	if f.Unfinished == nil {
		return
	}
	f.Unfinished.Left(func(token, path string) bool {
		args, err := json.Marshal(sweepArgs{path, token})
		if err == nil {
			err = send(worker.Request{Op: opSweep, Args: args})
		}
		return err == nil // it replied: a file that it could not remove stays
	})
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

// remove removes the call's temporary file beside a place.
func (t *tree) remove(p place) {
	t.touch(p.full)
	_ = os.Remove(t.tempBeside(p))
}

func (t *tree) tempName() string { return ".scopefs-" + t.temp }

// tempBeside returns the path of the call's temporary file in the directory of p.
func (t *tree) tempBeside(p place) string { return filepath.Dir(p.full) + "/" + t.tempName() }
