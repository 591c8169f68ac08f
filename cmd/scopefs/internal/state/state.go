// Package state keeps in files of {state} what must outlive a daemon. These files
// are there:
//
//	approvals/ID.json   a call that waits for the operator, or has his decision;
//	                    the file goes when the approval is used, or expires
//	rates/AGENT         how much of each of an agent's rate_limits is used
//	unfinished/         the calls of file tools that may leave a temporary file
//	definitions/        the hashes of definitions that have loaded
//
// Beside them are audit/, which package audit writes, and http.key, the key of
// HTTP tokens. Only the daemon's user can read any of it: an approval holds a
// call's arguments.
//
// A file of approvals/ is written under another name, synced, and renamed; then
// its directory is synced. So approvals outlive the machine. Rates are written in
// place and not synced, as are the links of unfinished/ and what is in definitions/: they outlive the daemon, and after a power loss may be
// those of half a minute before.
package state

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// open opens a directory of {state}, and makes it (0700) when it is missing.
func open(state, name string) (*os.Root, error) {
	dir := filepath.Join(state, name)
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.Chmod(dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return root, nil
}

// replace writes a file so that after a crash it is the old one or the new one,
// and the new one once replace has returned nil.
func replace(root *os.Root, name string, text []byte) (err error) {
	temp := "." + name
	f, err := root.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
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
	return syncDir(root)
}

// SyncDir waits until the names in a directory are on the disk.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// syncDir is SyncDir for a directory that is open.
func syncDir(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// read returns a file of at most max bytes.
func read(root *os.Root, name string, max int64) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, max+1))
	if err == nil && int64(len(text)) > max {
		err = fmt.Errorf("%s has more than %d bytes", name, max)
	}
	return text, err
}
