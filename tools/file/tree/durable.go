package tree

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools/file/message"
)

// touched is a directory in which a call changes an entry.
type touched struct {
	path  string
	dir   *os.File // nil: the agent may not read it
	entry string   // a path in it
}

// sync syncs a file, unless the agent's definition says otherwise. It ignores EINVAL, the
// error of a file system that cannot sync (fsync(2)).
func (t *tree) sync(f *os.File) error {
	if t.quick {
		return nil
	}
	if err := f.Sync(); !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// touch opens the directory of a path whose entry will change, for settle. If the
// directory cannot be opened, the change itself returns the error.
func (t *tree) touch(path string) {
	dir := filepath.Dir(path)
	if t.quick || slices.ContainsFunc(t.made, func(d touched) bool { return d.path == dir }) {
		return
	}
	f, err := openDir(dir)
	if err == nil || errors.Is(err, unix.EACCES) {
		t.made = append(t.made, touched{dir, f, path})
	}
}

// settle syncs the directories touched after the first n. A new name is on the disk when
// its directory is (fsync(2)).
func (t *tree) settle(n int) error {
	var errs []error
	for _, d := range t.made[n:] {
		errs = append(errs, t.settleDir(d))
	}
	t.made = t.made[:n]
	return errors.Join(errs...)
}

func (t *tree) settleDir(d touched) error {
	f := d.dir
	if f == nil {
		// A directory that the agent may not read cannot be synced. File systems
		// with a journal write an entry together with its inode.
		var err error
		if f, err = os.OpenFile(d.entry, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err != nil {
			return nil
		}
	}
	return errors.Join(t.sync(f), f.Close())
}

// abandon closes the directories touched by a call that has failed.
func (t *tree) abandon() {
	for _, d := range t.made {
		d.dir.Close()
	}
	t.made = nil
}

// unsettled returns the error of a change that was made but may not survive a power loss.
func unsettled(err error) error {
	what := err.Error()
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		what = errno.Error()
	}
	e := message.Errorf(message.Internal, "changed, but perhaps not on the disk: %s", what)
	e.Hint = "look at what is there, and try again"
	return e
}

// makeDirs creates a directory and its missing parents, in a directory that exists.
func (t *tree) makeDirs(full, top string) error {
	if info, err := os.Stat(full); err == nil {
		if !info.IsDir() {
			return unix.ENOTDIR
		}
		return nil
	}
	if up := filepath.Dir(full); len(up) > len(top) || strings.HasPrefix(up, fdDir) {
		if err := t.makeDirs(up, top); err != nil {
			return err
		}
	}
	t.touch(full)
	err := os.Mkdir(full, 0o777)
	if errors.Is(err, unix.EEXIST) { // created meanwhile
		if info, serr := os.Stat(full); serr == nil && info.IsDir() {
			return nil
		}
	}
	return err
}
