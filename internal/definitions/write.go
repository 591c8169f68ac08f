package definitions

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/durable"
)

// Write writes a definition atomically, by a rename from a name with a leading dot. It does not use link(2), because
// loading rejects files with several names. Without replace an existing file is fs.ErrExist.
func Write(path string, text []byte, mode fs.FileMode, replace bool) error {
	flags := uint(unix.RENAME_NOREPLACE)
	if replace {
		flags = 0
	}
	return write(path, text, mode, func(tmp string) error { return unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, path, flags) })
}

// ErrChanged reports a definition that somebody else has changed meanwhile.
var ErrChanged = errors.New("somebody has changed it meanwhile: repeat the command")

// Replace writes a definition that is before, with the same mode and owner. For any other text it is ErrChanged, and the file
// stays as it is.
func Replace(path string, before, text []byte) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	return write(path, text, info.Mode().Perm(), func(tmp string) error {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
			if err := os.Lchown(tmp, int(st.Uid), int(st.Gid)); err != nil {
				return err
			}
		}
		exchange := func() error { return unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE) }
		err := exchange()
		now, readErr := os.ReadFile(tmp)
		if err != nil || readErr != nil || bytes.Equal(now, before) {
			return errors.Join(err, readErr)
		}
		return errors.Join(ErrChanged, exchange())
	})
}

func write(path string, text []byte, mode fs.FileMode, place func(tmp string) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err = place(f.Name()); err == nil {
		err = durable.SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
