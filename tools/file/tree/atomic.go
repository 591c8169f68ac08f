package tree

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/interrupted"
	"github.com/scopefs/scopefs/tools/file/message"
)

// replace replaces the content of a file. It reports whether the file was rewritten in
// place. It first opens the file for writing: a file that may not be written must not be
// replaced either, and the log then has the refusal under the file's own name.
func (t *tree) replace(p place, content []byte) (inPlace bool, err error) {
	f, st, err := t.open(p, os.O_WRONLY|unix.O_NOFOLLOW, message.Writing)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if st.Nlink == 1 && int(st.Uid) == os.Geteuid() {
		err := t.swap(p, content, os.FileMode(st.Mode)&0o777, true)
		if !refused(err) {
			return false, err
		}
	}
	return true, t.rewrite(f, content)
}

// refused reports whether an error says that a directory accepts no temporary file.
func refused(err error) bool {
	return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
}

// rewrite overwrites the content of an open file.
func (t *tree) rewrite(f *os.File, content []byte) error {
	if _, err := f.WriteAt(content, 0); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(content))); err != nil {
		return err
	}
	return t.sync(f)
}

// create creates a file, whole or not at all. If the name exists by then, create replaces
// the file if over is true; else the error is EEXIST.
func (t *tree) create(p place, content []byte, over bool) (inPlace bool, err error) {
	if p, err = t.parents(p); err != nil {
		return false, err
	}
	if err := t.swap(p, content, 0o666, over); !refused(err) {
		return false, err
	}
	// The policy may allow only this name, and no temporary beside it.
	f, err := newFile(p.full, os.O_WRONLY, 0o666)
	if err != nil {
		return false, err
	}
	err = errors.Join(t.rewrite(f, content), f.Close())
	if err != nil {
		os.Remove(p.full)
	}
	return true, err
}

// swap writes a temporary file beside p, syncs it, and renames it to p: a file system may
// write the name to the disk before the content. Mode 0666 is reduced by the umask; any
// other mode is exact.
func (t *tree) swap(p place, content []byte, mode os.FileMode, over bool) (err error) {
	t.touch(p.full)
	temp := t.tempBeside(p)
	f, err := newFile(temp, os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(temp)
		}
	}()
	if mode != 0o666 {
		err = setMode(f, mode)
	}
	if err == nil {
		_, err = f.Write(content)
	}
	if err == nil {
		err = t.sync(f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return rename(temp, p.full, over)
}

// setMode sets the exact permissions of a new file, if a umask or a default ACL removed
// some at the open. A chmod costs a request to the view.
func setMode(f *os.File, mode os.FileMode) error {
	if st, err := statAt(int(f.Fd()), "", unix.AT_EMPTY_PATH); err == nil && os.FileMode(st.Mode&0o7777) == mode {
		return nil
	}
	return f.Chmod(mode)
}

// rename renames a file. Unless over is true, it never replaces an existing one.
func rename(from, to string, over bool) error {
	flags := uint(unix.RENAME_NOREPLACE)
	if over {
		flags = 0
	}
	return interrupted.Retry(func() error { return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags) })
}
