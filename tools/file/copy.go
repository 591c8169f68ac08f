package file

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools"
)

type copyArgs struct {
	From      string `json:"from" jsonschema:"the file, link or directory, relative to the workspace"`
	To        string `json:"to" jsonschema:"the path of the copy, not the directory to put it in"`
	Recursive bool   `json:"recursive,omitempty" jsonschema:"copy a directory with all that is in it"`
	Overwrite bool   `json:"overwrite,omitempty" jsonschema:"replace files that are there; directories are merged"`
}

func (a copyArgs) About() tools.About {
	return tools.About{Path: logged(a.From), Target: logged(a.To), Outside: cmp.Or(strayed(reading, a.From), strayed(writing, a.To))}
}

type copyResult struct {
	From    string `json:"from" limit:"len=8192"`
	To      string `json:"to" limit:"len=8192"`
	Copied  int    `json:"copied" jsonschema:"files, links and directories"`
	Bytes   int64  `json:"bytes"`
	Skipped int    `json:"skipped,omitempty" jsonschema:"FIFOs, sockets and devices, which are not copied"`
}

// copy copies a tree with its permissions, and links as links. It copies each file whole or not at all.
func (t *tree) copy(ctx context.Context, in copyArgs) (copyResult, error) {
	from, to, err := t.pair(in.From, in.To, reading)
	if err != nil {
		return copyResult{}, err
	}
	r := copyResult{From: from.rel, To: to.rel}
	st, err := t.lstat(from, reading)
	if err != nil {
		return r, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if !in.Recursive {
			return r, problem(tools.Invalid, from.rel, "is a directory", "set recursive to copy it with what is in it")
		}
		if err := t.apart(&st, to); err != nil {
			return r, err
		}
		if _, err := t.lstat(to, writing); err == nil && !in.Overwrite {
			return r, t.failPair(from, to, unix.EEXIST, reading)
		}
	}
	c := copier{t, ctx, in.Overwrite, &r}
	if err := c.copy(from, to, &st); err != nil {
		return r, soFar(err, "copied", r.Copied)
	}
	if r.Copied == 0 {
		return r, problem(tools.Invalid, from.rel, "not a regular file: "+typeName(st.Mode), "")
	}
	return r, nil
}

// apart returns an error for a copy of a directory into itself, by any path.
func (t *tree) apart(st *unix.Stat_t, to place) error {
	dir := to.full
	for {
		at, err := statAt(unix.AT_FDCWD, dir, 0)
		if err == nil && at.Ino == st.Ino && at.Dev == st.Dev {
			return problem(tools.Invalid, to.rel, "a directory cannot be put into itself", "")
		}
		if err == nil {
			if real, err := filepath.EvalSymlinks(dir); err == nil {
				dir = real
			}
		}
		if len(dir) <= len(t.root) {
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
	r    *copyResult
}

func (c *copier) copy(from, to place, st *unix.Stat_t) (err error) {
	if err := c.ctx.Err(); err != nil {
		return c.tree.fail(from, err, reading)
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
	own := len(c.tree.dirs)
	err := os.Mkdir(to.full, 0o700)
	made := err == nil
	if errors.Is(err, unix.EEXIST) && c.over {
		at, lerr := c.tree.lstat(to, writing)
		if err = lerr; err == nil && at.Mode&unix.S_IFMT != unix.S_IFDIR {
			err = unix.EEXIST
		}
	}
	if err != nil {
		return c.tree.failPair(from, to, err, reading)
	}
	c.r.Copied++
	c.tree.touch(to.full + "/.")
	err = eachEntry(c.ctx, from, func(d fs.DirEntry) error {
		name := d.Name()
		inner, err := c.tree.lstat(from.child(name), reading)
		if isCode(err, tools.NotFound) {
			return nil // removed meanwhile
		}
		if err == nil {
			err = c.copy(from.child(name), to.child(name), &inner)
		}
		return err
	})
	if err != nil {
		return c.tree.fail(from, err, reading)
	}
	if made {
		if err := os.Chmod(to.full, os.FileMode(st.Mode)&0o777); err != nil {
			return c.tree.fail(to, err, writing)
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
		return c.tree.fail(from, err, reading)
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
		return c.tree.failPair(from, to, err, reading)
	}
	return nil
}

// file copies a file into a temporary, and renames that.
func (c *copier) file(from, to place) (err error) {
	in, st, err := c.tree.open(from, os.O_RDONLY|unix.O_NOFOLLOW, reading)
	if err != nil {
		return err
	}
	defer in.Close()
	if at, err := c.tree.lstat(to, writing); err == nil {
		if !c.over {
			return c.tree.failPair(from, to, unix.EEXIST, reading)
		}
		if at.Mode&unix.S_IFMT == unix.S_IFDIR {
			return c.tree.fail(to, unix.EISDIR, writing)
		}
		if at.Ino == st.Ino && at.Dev == st.Dev {
			return problem(tools.Invalid, to.rel, "is the same file", "")
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
		return c.tree.failPair(from, to, err, reading)
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
		return c.tree.failPair(from, to, err, reading)
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
