package tree

import (
	"context"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools/file/message"
)

func (t *tree) take(ctx context.Context, in message.TakeArgs) (r message.TakeResult, err error) {
	for _, s := range in.Steps {
		if err := ctx.Err(); err != nil {
			return r, message.Problem(message.Internal, string(s.To), "cancelled", "")
		}
		if err := t.takeStep(ctx, in.From, s); err != nil {
			return r, err
		}
	}
	return r, nil
}

func (t *tree) takeStep(ctx context.Context, from string, s message.TakeStep) error {
	switch s.Do {
	case message.TakeRemove:
		p, err := t.at(string(s.Path), message.Writing)
		if err != nil {
			return err
		}
		t.touch(p.full)
		if err = os.Remove(p.full); err != nil && !os.IsNotExist(err) {
			return t.fail(p, err, message.Writing)
		}
		return nil
	case message.TakeMove:
		_, err := t.move(ctx, message.MoveArgs{From: string(s.Path), To: string(s.To)})
		return err
	}
	to, err := t.at(string(s.To), message.Writing)
	if err != nil {
		return err
	}
	source := place{asked: to.rel, rel: to.rel, full: path.Join(from, to.rel), dir: from}
	if s.Do == message.TakeMode {
		err = t.takeMode(source, to)
	} else {
		err = t.takeOver(ctx, source, to)
	}
	if err != nil {
		return t.fail(to, err, message.Writing)
	}
	return nil
}

// takeOver makes one path what it is in the other directory.
func (t *tree) takeOver(ctx context.Context, from, to place) error {
	st, err := t.lstat(from, message.Reading)
	if err != nil {
		return err
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if at, err := t.lstat(to, message.Writing); err == nil && isDir != (at.Mode&unix.S_IFMT == unix.S_IFDIR) {
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
	c := copier{t, ctx, true, &message.CopyResult{}}
	if err := c.copy(from, to, &st); err != nil {
		return err
	}
	if c.r.Copied == 0 {
		return message.Problem(message.Invalid, to.rel, "not a regular file: "+typeName(st.Mode), "")
	}
	return nil
}

// takeMode gives a directory the mode that it has in the other one.
func (t *tree) takeMode(from, to place) error {
	st, err := t.lstat(from, message.Reading)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return err
	}
	at, err := t.lstat(to, message.Writing)
	if err != nil || at.Mode&0o777 == st.Mode&0o777 {
		return err
	}
	return os.Chmod(to.full, os.FileMode(st.Mode)&0o777)
}
