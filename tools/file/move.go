package file

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/interrupted"
	"github.com/scopefs/scopefs/tools"
)

// MakeDirArgs are the arguments of make_dir.
type MakeDirArgs struct {
	Path string `json:"path" jsonschema:"the directory, relative to the workspace; missing ones above it are made, too"`
}

// About implements tools.Scoped.
func (a MakeDirArgs) About() tools.About { return about(writing, a.Path) }

type makeDirResult struct {
	Path    string `json:"path" limit:"len=8192"`
	Created bool   `json:"created" jsonschema:"false: it was there"`
}

func (t *tree) makeDir(_ context.Context, in MakeDirArgs) (makeDirResult, error) {
	p, err := t.at(in.Path, writing)
	if err != nil {
		return makeDirResult{}, err
	}
	r := makeDirResult{Path: p.rel}
	t.touch(p.full)
	err = os.Mkdir(p.full, 0o777)
	switch {
	case err == nil:
		r.Created = true
	case errors.Is(err, unix.ENOENT):
		r.Created = true
		err = t.makeDirs(p.full)
	case errors.Is(err, unix.EEXIST):
		var st unix.Stat_t
		if err = unix.Stat(p.full, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			err = unix.EEXIST
		}
	}
	if err != nil {
		return makeDirResult{}, t.fail(p, err, writing)
	}
	return r, nil
}

// MoveArgs are the arguments of move.
type MoveArgs struct {
	From      string `json:"from" jsonschema:"what to move or rename, relative to the workspace"`
	To        string `json:"to" jsonschema:"its new path, not the directory to put it in"`
	Overwrite bool   `json:"overwrite,omitempty" jsonschema:"replace the file that has the new path"`
}

// About implements tools.Scoped.
func (a MoveArgs) About() tools.About { return about(writing, a.From, a.To) }

type moveResult struct {
	From string `json:"from" limit:"len=8192"`
	To   string `json:"to" limit:"len=8192"`
}

// move renames a name and never copies. After an error the name is unchanged.
func (t *tree) move(_ context.Context, in MoveArgs) (moveResult, error) {
	from, to, err := t.pair(in.From, in.To, writing)
	if err != nil {
		return moveResult{}, err
	}
	t.syncMoved(from)
	t.touch(from.full)
	t.touch(to.full)
	if err := rename(from.full, to.full, in.Overwrite); err != nil {
		return moveResult{}, t.failPair(from, to, err, writing)
	}
	return moveResult{from.rel, to.rel}, nil
}

// syncMoved syncs a file before it is moved, because it may replace an existing file.
func (t *tree) syncMoved(p place) {
	if t.quick {
		return
	}
	if f, _, err := t.open(p, os.O_RDONLY|unix.O_NOFOLLOW, writing); err == nil {
		_ = t.sync(f) // the file's writers are responsible for its content
		f.Close()
	}
}

// pair returns the places of two paths. The root is an error.
func (t *tree) pair(from, to string, why intent) (a, b place, err error) {
	if a, err = t.at(from, why); err != nil {
		return a, b, err
	}
	if b, err = t.at(to, writing); err != nil {
		return a, b, err
	}
	for _, p := range []place{a, b} {
		if p.rel == "." {
			return a, b, problem(tools.Invalid, p.rel, "the root of the view stays where it is", "")
		}
	}
	return a, b, nil
}

// failPair returns the error of an operation on two names, for the name that caused it.
func (t *tree) failPair(from, to place, err error, why intent) error {
	errno, _ := errors.AsType[unix.Errno](err)
	switch errno {
	case unix.EINVAL:
		return problem(tools.Invalid, to.rel, "a directory cannot be put into itself", "")
	case unix.EEXIST:
		return problem(tools.Conflict, to.rel, "exists already", "set overwrite, or take another path")
	case unix.EISDIR, unix.ENOTEMPTY:
		return t.fail(to, err, writing)
	}
	if _, ferr := t.lstat(from, why); ferr != nil {
		return ferr
	}
	if errno == unix.ENOENT {
		if e, ok := t.fail(to, err, writing).(*tools.Error); ok && e.Code == tools.NotFound {
			e.Message, e.Hint = "its directory does not exist", "make it with make_dir"
			return e
		}
	}
	return t.fail(to, err, writing)
}

type deleteFileArgs struct {
	Path string `json:"path" jsonschema:"a file or link, relative to the workspace"`
}

func (a deleteFileArgs) About() tools.About { return about(writing, a.Path) }

type deleteArgs struct {
	Path      string `json:"path" jsonschema:"a directory, relative to the workspace"`
	Recursive bool   `json:"recursive,omitempty" jsonschema:"with all that is in it"`
}

func (a deleteArgs) About() tools.About { return about(writing, a.Path) }

type deleteResult struct {
	Path    string `json:"path" limit:"len=8192"`
	Deleted int    `json:"deleted" jsonschema:"names, of files and directories"`
}

func (t *tree) deleteFile(_ context.Context, in deleteFileArgs) (deleteResult, error) {
	p, err := t.at(in.Path, writing)
	if err != nil {
		return deleteResult{}, err
	}
	t.touch(p.full)
	if err = interrupted.Retry(func() error { return unix.Unlink(p.full) }); err == nil {
		return deleteResult{p.rel, 1}, nil
	}
	if errors.Is(err, unix.EISDIR) {
		return deleteResult{}, problem(tools.Invalid, p.rel, "is a directory", "use delete")
	}
	return deleteResult{}, t.fail(p, err, writing)
}

func (t *tree) delete(ctx context.Context, in deleteArgs) (deleteResult, error) {
	p, err := t.at(in.Path, writing)
	if err != nil {
		return deleteResult{}, err
	}
	if p.rel == "." {
		return deleteResult{}, problem(tools.Invalid, p.rel, "the root of the view stays", "delete what is in it")
	}
	r := deleteResult{Path: p.rel}
	t.touch(p.full)
	if err := unix.Rmdir(p.full); err == nil {
		r.Deleted = 1
		return r, nil
	} else if !in.Recursive || !errors.Is(err, unix.ENOTEMPTY) {
		e := t.fail(p, err, writing)
		if errors.Is(err, unix.ENOTEMPTY) {
			e = problem(tools.Conflict, p.rel, "directory not empty", "set recursive to delete what is in it")
		} else if errors.Is(err, unix.ENOTDIR) {
			e = problem(tools.Invalid, p.rel, "not a directory", "use delete_file")
		}
		return r, e
	}
	if err := t.empty(ctx, p, &r.Deleted); err != nil {
		return r, soFar(err, "deleted", r.Deleted)
	}
	return r, nil
}

// empty removes a directory with its content, and counts the removed names.
func (t *tree) empty(ctx context.Context, p place, n *int) error {
	for {
		if err := ctx.Err(); err != nil {
			return t.fail(p, err, writing)
		}
		d, err := openDir(p.full)
		if err != nil {
			return t.fail(p, err, writing)
		}
		names, _ := d.Readdirnames(1000) // after an error the rmdir below fails
		d.Close()
		for _, name := range names {
			child := p.child(name)
			err := unix.Unlink(child.full)
			if errors.Is(err, unix.EISDIR) {
				if err := t.empty(ctx, child, n); err != nil {
					return err
				}
				continue
			}
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return t.fail(child, err, writing)
			}
			*n++
		}
		if err = unix.Rmdir(p.full); err == nil {
			*n++
			return nil
		}
		if !errors.Is(err, unix.ENOTEMPTY) || len(names) == 0 { // the directory holds hidden names
			return t.fail(p, err, writing)
		}
	}
}

// soFar adds the progress of an operation to its error.
func soFar(err error, what string, n int) error {
	if e, ok := errors.AsType[*tools.Error](err); ok && !stale(err) && (n > 0 || e.Hint == "") {
		e.Hint = fmt.Sprintf("%d %s before that", n, what)
	}
	return err
}
