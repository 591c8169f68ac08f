package tree

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools/file/message"
)

// copy copies a tree with its permissions, and links as links. It copies each file whole or not at all.
func (t *tree) copy(ctx context.Context, in message.CopyArgs) (message.CopyResult, error) {
	from, to, err := t.pair(in.From, in.To, message.Reading)
	if err != nil {
		return message.CopyResult{}, err
	}
	r := message.CopyResult{From: from.rel, To: to.rel}
	st, err := t.lstat(from, message.Reading)
	if err != nil {
		return r, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if !in.Recursive {
			return r, message.Problem(message.Invalid, from.rel, "is a directory", "set recursive to copy it with what is in it")
		}
		if err := t.apart(&st, to); err != nil {
			return r, err
		}
		if _, err := t.lstat(to, message.Writing); err == nil && !in.Overwrite {
			return r, t.failPair(from, to, unix.EEXIST, message.Reading)
		}
	}
	c := copier{t, ctx, in.Overwrite, &r}
	if err := c.copy(from, to, &st); err != nil {
		return r, soFar(err, "copied", r.Copied)
	}
	if r.Copied == 0 {
		return r, message.Problem(message.Invalid, from.rel, "not a regular file: "+typeName(st.Mode), "")
	}
	return r, nil
}

// apart returns an error for a copy of a directory into itself, by any path.
func (t *tree) apart(st *unix.Stat_t, to place) error {
	dir := to.full
	for {
		at, err := statAt(unix.AT_FDCWD, dir, 0)
		if err == nil && at.Ino == st.Ino && at.Dev == st.Dev {
			return message.Problem(message.Invalid, to.rel, "a directory cannot be put into itself", "")
		}
		if err == nil {
			if real, err := filepath.EvalSymlinks(dir); err == nil {
				dir = real
			}
		}
		if len(dir) <= len(to.dir) {
			return nil
		}
		dir = filepath.Dir(dir)
	}
}

// copier is the state of one copy. One goroutine owns it.
type copier struct {
	tree *tree
	ctx  context.Context // of the call
	over bool
	r    *message.CopyResult
}

func (c *copier) copy(from, to place, st *unix.Stat_t) (err error) {
	if err := c.ctx.Err(); err != nil {
		return c.tree.fail(from, err, message.Reading)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return c.dir(from, to, st)
	case unix.S_IFLNK:
		err = c.link(from, to)
	case unix.S_IFREG:
		err = c.file(from, to)
	default:
		c.r.Skipped++
		return nil
	}
	if err == nil {
		c.r.Copied++
	}
	return err
}

func (c *copier) dir(from, to place, st *unix.Stat_t) error {
	c.tree.touch(to.full)
	own := len(c.tree.made)
	err := os.Mkdir(to.full, 0o700)
	made := err == nil
	if errors.Is(err, unix.EEXIST) && c.over {
		at, lerr := c.tree.lstat(to, message.Writing)
		if err = lerr; err == nil && at.Mode&unix.S_IFMT != unix.S_IFDIR {
			err = unix.EEXIST
		}
	}
	if err != nil {
		return c.tree.failPair(from, to, err, message.Reading)
	}
	c.r.Copied++
	c.tree.touch(to.full + "/.")
	err = eachEntry(c.ctx, from, func(d fs.DirEntry) error {
		name := d.Name()
		inner, err := c.tree.lstat(from.child(name), message.Reading)
		if isCode(err, message.NotFound) {
			return nil // removed meanwhile
		}
		if err == nil {
			err = c.copy(from.child(name), to.child(name), &inner)
		}
		return err
	})
	if err != nil {
		return c.tree.fail(from, err, message.Reading)
	}
	if made {
		if err := os.Chmod(to.full, os.FileMode(st.Mode)&0o777); err != nil {
			return c.tree.fail(to, err, message.Writing)
		}
	}
	if err := c.tree.settle(own); err != nil {
		return unsettled(err)
	}
	return nil
}

func (c *copier) link(from, to place) error {
	target, err := os.Readlink(from.full)
	if err != nil {
		return c.tree.fail(from, err, message.Reading)
	}
	c.tree.touch(to.full)
	if err = os.Symlink(target, to.full); errors.Is(err, unix.EEXIST) && c.over {
		temp := c.tree.tempBeside(to)
		if err = os.Symlink(target, temp); err == nil {
			if err = rename(temp, to.full, true); err != nil {
				os.Remove(temp)
			}
		}
	}
	if err != nil {
		return c.tree.failPair(from, to, err, message.Reading)
	}
	return nil
}

// file copies a file into a temporary, and renames that.
func (c *copier) file(from, to place) (err error) {
	in, st, err := c.tree.open(from, os.O_RDONLY|unix.O_NOFOLLOW, message.Reading)
	if err != nil {
		return err
	}
	defer in.Close()
	if at, err := c.tree.lstat(to, message.Writing); err == nil {
		if !c.over {
			return c.tree.failPair(from, to, unix.EEXIST, message.Reading)
		}
		if at.Mode&unix.S_IFMT == unix.S_IFDIR {
			return c.tree.fail(to, unix.EISDIR, message.Writing)
		}
		if at.Ino == st.Ino && at.Dev == st.Dev {
			return message.Problem(message.Invalid, to.rel, "is the same file", "")
		}
	}
	c.tree.touch(to.full)
	temp, over := c.tree.tempBeside(to), c.over
	out, err := newFile(temp, os.O_WRONLY, 0o600)
	if refused(err) { // the policy may allow only the new name
		temp = to.full
		out, err = newFile(temp, os.O_WRONLY, 0o600)
	}
	if err != nil {
		return c.tree.failPair(from, to, err, message.Reading)
	}
	n, err := c.content(out, in)
	if err == nil {
		err = out.Chmod(os.FileMode(st.Mode) & 0o777)
	}
	if err == nil {
		err = c.tree.sync(out)
	}
	if err = errors.Join(err, out.Close()); err == nil && temp != to.full {
		err = rename(temp, to.full, over)
	}
	if err != nil {
		os.Remove(temp)
		return c.tree.failPair(from, to, err, message.Reading)
	}
	c.r.Bytes += n
	return nil
}

// content copies in pieces, in the kernel if possible (copy_file_range(2)).
func (c *copier) content(out, in *os.File) (total int64, err error) {
	for {
		if err := c.ctx.Err(); err != nil {
			return total, err
		}
		n, err := io.CopyN(out, in, 8<<20)
		total += n
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}
