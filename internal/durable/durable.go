// Package durable replaces files as a whole: a reader, and the disk after a crash, has the old content or the new one. Every program of
// ours that writes a temporary file and renames it uses this package. The file tools do not: their files are the agent's.
//
// A name can reach the disk before the content: rename(2) orders nothing. So a [Draft] is written beside its name, synced (fsync(2)),
// renamed, and then its directory is synced, as fsync(2) says that the name needs.
package durable

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/interrupted"
)

// Options say how a file is written. The zero value replaces a file of one writer, durably, by one of mode 0600.
type Options struct {
	Mode     fs.FileMode // exact; 0666: what the umask leaves of it; 0: 0600
	New      bool        // a file that is there is fs.ErrExist
	Shared   bool        // several processes may write the name at the same time
	Unsynced bool        // a loss of power may leave an older file, or an empty one; the end of the process leaves the old file or the new one
}

// Draft is a file that is not in its place yet, or was placed. Its methods must not run at the same time.
type Draft struct {
	*os.File
	dir  *os.File // nil: it is placed or dropped
	name string
	temp string
	opt  Options
}

// Begin creates the draft of a file of a directory. The caller calls Close.
func Begin(root *os.Root, name string, opt Options) (*Draft, error) {
	dir, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	return begin(dir, name, opt)
}

// BeginAt is Begin for a path.
func BeginAt(path string, opt Options) (*Draft, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	return begin(dir, filepath.Base(path), opt)
}

func begin(dir *os.File, name string, opt Options) (_ *Draft, err error) {
	defer func() {
		if err != nil {
			dir.Close()
		}
	}()
	if name != filepath.Base(name) || name == "." || name == ".." || name == "/" {
		return nil, &os.PathError{Op: "create", Path: name, Err: unix.EINVAL}
	}
	d := &Draft{dir: dir, name: name, opt: opt, temp: "." + name}
	if opt.Shared {
		prefix := sharedPrefix(name)
		d.sweep(prefix)
		d.temp = prefix + rand.Text()
	} else if err := unix.Unlinkat(d.fd(), d.temp, 0); err != nil && err != unix.ENOENT { // of a process that was killed
		return nil, &os.PathError{Op: "remove", Path: d.temp, Err: err}
	}
	if d.opt.Mode == 0 {
		d.opt.Mode = 0o600
	}
	fd, err := unix.Openat(d.fd(), d.temp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(d.opt.Mode.Perm()))
	if err != nil {
		return nil, &os.PathError{Op: "create", Path: d.temp, Err: err}
	}
	d.File = os.NewFile(uintptr(fd), d.temp)
	if d.opt.Mode != 0o666 {
		if err := d.Chmod(d.opt.Mode.Perm()); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

func (d *Draft) fd() int { return int(d.dir.Fd()) }

// sharedPrefix returns the start of the temporary names of a file that has several writers.
func sharedPrefix(name string) string { return "." + name[:min(len(name), 200)] + ".new-" }

// leftover is the age from which a draft is of a process that was killed.
const leftover = time.Hour

// sweep removes the drafts of processes that were killed. What cannot be removed stays.
func (d *Draft) sweep(prefix string) {
	names, _ := d.dir.Readdirnames(-1)
	for _, name := range names {
		var st unix.Stat_t
		if strings.HasPrefix(name, prefix) && unix.Fstatat(d.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil &&
			time.Since(time.Unix(st.Mtim.Unix())) > leftover {
			_ = unix.Unlinkat(d.fd(), name, 0)
		}
	}
}

// Temp returns the name of the draft in its directory.
func (d *Draft) Temp() string { return d.temp }

// Place gives the file its name. The draft stays open for writing. After an error the name may have either file, and Close drops the
// draft.
func (d *Draft) Place() error {
	return d.PlaceBy(func() error {
		if !d.opt.New {
			return d.renamed(interrupted.Retry(func() error { return unix.Renameat(d.fd(), d.temp, d.fd(), d.name) }))
		}
		err := interrupted.Retry(func() error { return unix.Renameat2(d.fd(), d.temp, d.fd(), d.name, unix.RENAME_NOREPLACE) })
		if err == unix.EINVAL { // NFS: rename(2)
			if err = unix.Linkat(d.fd(), d.temp, d.fd(), d.name, 0); err == nil {
				err = unix.Unlinkat(d.fd(), d.temp, 0)
			}
		}
		return d.renamed(err)
	})
}

func (d *Draft) renamed(err error) error {
	if err != nil {
		err = &os.LinkError{Op: "rename", Old: d.temp, New: d.name, Err: err}
	}
	return err
}

// PlaceBy is Place with another rename. What that leaves at Temp is the caller's.
func (d *Draft) PlaceBy(rename func() error) error {
	if !d.opt.Unsynced {
		if err := d.Sync(); err != nil {
			return err
		}
	}
	if err := rename(); err != nil {
		return err
	}
	var err error
	if !d.opt.Unsynced {
		err = d.dir.Sync()
	}
	dir := d.dir
	d.dir = nil
	return errors.Join(err, dir.Close())
}

// Close closes the file, and drops a draft that was not placed. A second Close does nothing.
func (d *Draft) Close() error {
	if d.dir != nil {
		_ = unix.Unlinkat(d.fd(), d.temp, 0)
		d.dir.Close()
		d.dir = nil
	}
	err := d.File.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// Replace writes a file. After it returns nil the file has the content, also after a loss of power.
func Replace(root *os.Root, name string, text []byte, opt Options) error {
	d, err := Begin(root, name, opt)
	if err != nil {
		return err
	}
	return d.write(text)
}

// ReplaceAt is Replace for a path.
func ReplaceAt(path string, text []byte, opt Options) error {
	d, err := BeginAt(path, opt)
	if err != nil {
		return err
	}
	return d.write(text)
}

func (d *Draft) write(text []byte) error {
	_, err := d.Write(text)
	if err == nil {
		err = d.Place()
	}
	return errors.Join(err, d.Close())
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
