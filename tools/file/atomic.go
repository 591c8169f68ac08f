package file

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// replace gives a file a new content. It is true when that was done in place.
// The file itself is opened for writing first: what may not be written must not
// be replaced either, and the log has the refusal under the name that was meant.
func (t *tree) replace(p place, content []byte) (inPlace bool, err error) {
	f, st, err := t.open(p, os.O_WRONLY|unix.O_NOFOLLOW, writing)
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

// refused tells a directory that takes no temporary from other errors.
func refused(err error) bool {
	return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
}

// rewrite writes over a file.
func (t *tree) rewrite(f *os.File, content []byte) error {
	if _, err := f.WriteAt(content, 0); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(content))); err != nil {
		return err
	}
	return t.sync(f)
}

// create makes a file that is not there: whole, or not at all. If it is there by
// now it is replaced if over says so, else the error is EEXIST.
func (t *tree) create(p place, content []byte, over bool) (inPlace bool, err error) {
	if p, err = t.parents(p); err != nil {
		return false, err
	}
	if err := t.swap(p, content, 0o666, over); !refused(err) {
		return false, err
	}
	// The policy may allow this name alone.
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

// swap writes a temporary beside p and gives it p's name, when it is on the disk:
// a file system may write the name before the content. The mode 0666 is that
// of a new file, less the umask; any other is exact.
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

// setMode gives a new file its exact permissions. The open has set them, unless a umask
// or a default ACL took some. A chmod costs a request to the view.
func setMode(f *os.File, mode os.FileMode) error {
	if st, err := statAt(int(f.Fd()), "", unix.AT_EMPTY_PATH); err == nil && os.FileMode(st.Mode&0o7777) == mode {
		return nil
	}
	return f.Chmod(mode)
}

// rename renames; what has the new name already stays, unless over.
func rename(from, to string, over bool) error {
	flags := uint(unix.RENAME_NOREPLACE)
	if over {
		flags = 0
	}
	_, err := ignoringEINTR(func() (int, error) {
		return 0, unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags)
	})
	return err
}
