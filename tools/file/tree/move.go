package tree

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/interrupted"
	"github.com/scopefs/scopefs/tools/file/message"
)

func (t *tree) makeDir(_ context.Context, in message.MakeDirArgs) (message.MakeDirResult, error) {
	p, err := t.at(in.Path, message.Writing)
	if err != nil {
		return message.MakeDirResult{}, err
	}
	r := message.MakeDirResult{Path: p.rel}
	t.touch(p.full)
	err = os.Mkdir(p.full, 0o777)
	switch {
	case err == nil:
		r.Created = true
	case errors.Is(err, unix.ENOENT):
		r.Created = true
		err = t.makeDirs(p.full, p.dir)
	case errors.Is(err, unix.EEXIST):
		var st unix.Stat_t
		if err = unix.Stat(p.full, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			err = unix.EEXIST
		}
	}
	if err != nil {
		return message.MakeDirResult{}, t.fail(p, err, message.Writing)
	}
	return r, nil
}

// move renames a name and never copies. After an error the name is unchanged.
func (t *tree) move(_ context.Context, in message.MoveArgs) (message.MoveResult, error) {
	from, to, err := t.pair(in.From, in.To, message.Writing)
	if err != nil {
		return message.MoveResult{}, err
	}
	t.syncMoved(from)
	t.touch(from.full)
	t.touch(to.full)
	if err := rename(from.full, to.full, in.Overwrite); err != nil {
		return message.MoveResult{}, t.failPair(from, to, err, message.Writing)
	}
	return message.MoveResult{From: from.rel, To: to.rel}, nil
}

// syncMoved syncs a file before it is moved, because it may replace an existing file.
func (t *tree) syncMoved(p place) {
	if t.quick {
		return
	}
	if f, _, err := t.open(p, os.O_RDONLY|unix.O_NOFOLLOW, message.Writing); err == nil {
		_ = t.sync(f) // the file's writers are responsible for its content
		f.Close()
	}
}

// pair returns the places of two paths. The root is an error.
func (t *tree) pair(from, to string, why message.Intent) (a, b place, err error) {
	if a, err = t.at(from, why); err != nil {
		return a, b, err
	}
	if b, err = t.at(to, message.Writing); err != nil {
		return a, b, err
	}
	for _, p := range []place{a, b} {
		if p.top() {
			return a, b, message.Problem(message.Invalid, p.rel, "the root of the view stays where it is", "")
		}
	}
	return a, b, nil
}

// failPair returns the error of an operation on two names, for the name that caused it.
func (t *tree) failPair(from, to place, err error, why message.Intent) error {
	errno, _ := errors.AsType[unix.Errno](err)
	switch errno {
	case unix.EINVAL:
		return message.Problem(message.Invalid, to.rel, "a directory cannot be put into itself", "")
	case unix.EEXIST:
		return message.Problem(message.Conflict, to.rel, "exists already", "set overwrite, or take another path")
	case unix.EISDIR, unix.ENOTEMPTY:
		return t.fail(to, err, message.Writing)
	}
	if _, ferr := t.lstat(from, why); ferr != nil {
		return ferr
	}
	if errno == unix.ENOENT {
		if e, ok := t.fail(to, err, message.Writing).(*message.Error); ok && e.Code == message.NotFound {
			e.Message, e.Hint = "its directory does not exist", "make it with make_dir"
			return e
		}
	}
	return t.fail(to, err, message.Writing)
}

func (t *tree) deleteFile(_ context.Context, in message.DeleteFileArgs) (message.DeleteResult, error) {
	p, err := t.at(in.Path, message.Writing)
	if err != nil {
		return message.DeleteResult{}, err
	}
	t.touch(p.full)
	if err = interrupted.Retry(func() error { return unix.Unlink(p.full) }); err == nil {
		return message.DeleteResult{Path: p.rel, Deleted: 1}, nil
	}
	if errors.Is(err, unix.EISDIR) {
		return message.DeleteResult{}, message.Problem(message.Invalid, p.rel, "is a directory", "use delete")
	}
	return message.DeleteResult{}, t.fail(p, err, message.Writing)
}

func (t *tree) delete(ctx context.Context, in message.DeleteArgs) (message.DeleteResult, error) {
	p, err := t.at(in.Path, message.Writing)
	if err != nil {
		return message.DeleteResult{}, err
	}
	if p.top() {
		return message.DeleteResult{}, message.Problem(message.Invalid, p.rel, "the root of the view stays", "delete what is in it")
	}
	r := message.DeleteResult{Path: p.rel}
	t.touch(p.full)
	if err := unix.Rmdir(p.full); err == nil {
		r.Deleted = 1
		return r, nil
	} else if !in.Recursive || !errors.Is(err, unix.ENOTEMPTY) {
		e := t.fail(p, err, message.Writing)
		if errors.Is(err, unix.ENOTEMPTY) {
			e = message.Problem(message.Conflict, p.rel, "directory not empty", "set recursive to delete what is in it")
		} else if errors.Is(err, unix.ENOTDIR) {
			e = message.Problem(message.Invalid, p.rel, "not a directory", "use delete_file")
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
			return t.fail(p, err, message.Writing)
		}
		d, err := openDir(p.full)
		if err != nil {
			return t.fail(p, err, message.Writing)
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
				return t.fail(child, err, message.Writing)
			}
			*n++
		}
		if err = unix.Rmdir(p.full); err == nil {
			*n++
			return nil
		}
		if !errors.Is(err, unix.ENOTEMPTY) || len(names) == 0 { // the directory holds hidden names
			return t.fail(p, err, message.Writing)
		}
	}
}

// soFar adds the progress of an operation to its error.
func soFar(err error, what string, n int) error {
	if e, ok := errors.AsType[*message.Error](err); ok && !stale(err) && (n > 0 || e.Hint == "") {
		e.Hint = fmt.Sprintf("%d %s before that", n, what)
	}
	return err
}
