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

// Write writes a definition atomically. Loading rejects files with several names, and skips those with a leading dot. Without replace an
// existing file is fs.ErrExist.
func Write(path string, text []byte, mode fs.FileMode, replace bool) error {
	if err := durable.ReplaceAt(path, text, durable.Options{Mode: mode, Shared: true, New: !replace}); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
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
	d, err := durable.BeginAt(path, durable.Options{Mode: info.Mode().Perm(), Shared: true})
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer d.Close()
	temp := filepath.Join(filepath.Dir(path), d.Temp())
	if _, err = d.Write(text); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
			err = d.Chown(int(st.Uid), int(st.Gid))
		}
	}
	if err == nil {
		err = d.PlaceBy(func() error { return exchange(temp, path, before) })
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Remove(temp) // the text before
}

// exchange exchanges two files. If the second one has not a text, it exchanges them back.
func exchange(temp, path string, before []byte) error {
	swap := func() error { return unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE) }
	if err := swap(); err != nil {
		return err
	}
	now, err := os.ReadFile(temp)
	if err != nil || bytes.Equal(now, before) {
		return err
	}
	return errors.Join(ErrChanged, swap())
}
