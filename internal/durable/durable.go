// Package durable writes files of a state directory so that they survive a loss of power.
package durable

import (
	"errors"
	"os"
)

// Replace writes a file (mode 0600) atomically. After a crash the file has the old content or the new one. After Replace
// returns nil it has the new one. One process at a time may replace a file of a name.
func Replace(root *os.Root, name string, text []byte) error {
	temp := "." + name
	if err := root.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) { // of a process that was killed
		return err
	}
	f, err := root.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(temp, name)
	}
	if err != nil {
		return errors.Join(err, root.Remove(temp))
	}
	return Sync(root.Open("."))
}

// SyncDir syncs a directory, so that its names are on the disk.
func SyncDir(path string) error { return Sync(os.Open(path)) }

// Sync is SyncDir for an open directory, which it closes, or the error of its open.
func Sync(dir *os.File, err error) error {
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
