package tree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools/file/message"
)

func (t *tree) sweep(ctx context.Context, in message.SweepArgs) (struct{}, error) {
	p, err := t.at(in.Path, message.Writing)
	if err != nil || in.Token == "" {
		return struct{}{}, err
	}
	t.temp = in.Token
	t.remove(p)
	if target, there, err := t.target(p); err == nil && there {
		t.remove(target)
	}
	if st, err := t.lstat(p, message.Writing); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return struct{}{}, nil
	}
	w := walker{ctx: ctx, git: true, visit: func(p place, _ string, d fs.DirEntry) error {
		if d.Name() == t.tempName() {
			t.remove(p)
		}
		return nil
	}}
	if err := w.walk(p, "", 1); err != nil && !errors.Is(err, errEnough) {
		return struct{}{}, t.fail(p, err, message.Writing)
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
