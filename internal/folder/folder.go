// Package folder reads the operator's files of a base directory by descriptor: never through links, never a file with a
// second name, which may be in a view, and no file twice that has not changed.
package folder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/fields"
)

// Folder is an open directory of definitions.
type Folder struct {
	*os.File
	Rel string // relative to the base directory
}

// MaxSize bounds a file, in bytes.
const MaxSize = 1 << 20

// MaxName limits the name of a file without its ending, in bytes.
const MaxName = 64

// Open opens a directory of base. It rejects one inside {base}/agents,
// where an agent could write its own rules.
func Open(base, rel string) (Folder, error) {
	// It follows a symbolic link. The check uses the descriptor.
	dir, err := os.OpenFile(filepath.Join(base, rel), unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Folder{}, err
	}
	if err != nil {
		return Folder{}, fmt.Errorf("%w: make it a directory the daemon may read", err)
	}
	where, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if err == nil {
		err = outsideViews(where, base, rel)
	}
	if err != nil {
		dir.Close()
		return Folder{}, err
	}
	return Folder{dir, rel}, nil
}

func outsideViews(where, base, rel string) error {
	views, err := filepath.EvalSymlinks(filepath.Join(base, "agents"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		views, err = filepath.Abs(views)
	}
	if err != nil {
		return fmt.Errorf("find the views: %w: check the base directory", err)
	}
	if where == views || strings.HasPrefix(where, views+"/") {
		return fmt.Errorf("%q is inside the views, where agents write: move %s out of %q", where, rel, views)
	}
	return nil
}

// Names returns the names in the directory that end in suffix, sorted. It omits
// hidden files.
func (d Folder) Names(suffix string) ([]string, error) {
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w: check its file system", d.Rel, err)
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return strings.HasPrefix(name, ".") || !strings.HasSuffix(name, suffix)
	})
	slices.Sort(names)
	return names, nil
}

// Sub opens a subdirectory. It follows no symbolic link.
func (d Folder) Sub(name string) (Folder, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return Folder{}, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return Folder{}, errors.New("is a symbolic link: put the directory itself here")
	}
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return Folder{}, err
	}
	return Folder{os.NewFile(uintptr(fd), name), path.Join(d.Rel, name)}, nil
}

// Holds reports whether the directory has a directory with a regular file. It follows no symbolic link.
func (d Folder) Holds(name, file string) bool {
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	err = unix.Fstatat(fd, file, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
}

// Program opens the program of an activity for reading: a regular file with one name,
// of root or the daemon's user, which nobody else can write.
func (d Folder) Program(name string) (*os.File, Dated, error) {
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		err = errors.New("is a symbolic link: put the program itself here")
	}
	if err != nil {
		return nil, Dated{}, fmt.Errorf("the program %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	at, err := StampOf(fd, "")
	if err == nil {
		err = executable(fd)
	}
	if err != nil {
		f.Close()
		return nil, at, fmt.Errorf("the program %s %w", name, err)
	}
	return f, at, nil
}

func executable(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return errors.New("is no regular file: put the program itself here")
	case st.Nlink != 1:
		return errors.New("has more than one name, and one may be in a view: replace it by a copy")
	case st.Mode&0o111 != 0o111:
		return errors.New("cannot be executed by agents: chmod a+rx, or remove it")
	case st.Mode&0o022 != 0:
		return errors.New("can be written by others: chmod go-w")
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return errors.New("is of another user: chown it to root")
	}
	return nil
}

// ReadFiles reads the .yaml files in a directory of a base directory, by name without .yaml. It
// returns an error for each file that does not load, and keeps what last has of it.
func ReadFiles[T any](base, rel string, parse func(file string, data []byte) (T, error), last map[string]T) (map[string]T, []error) {
	dir, err := Open(base, rel)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return last, []error{&fields.FileError{File: rel, Err: err}}
	}
	defer dir.Close()
	names, err := dir.Names(".yaml")
	if err != nil {
		return last, []error{&fields.FileError{File: rel, Err: err}}
	}
	all, errs := map[string]T{}, []error(nil)
	for _, name := range names {
		file, key := path.Join(rel, name), strings.TrimSuffix(name, ".yaml")
		text, err := dir.Read(name, nil)
		var made T
		if err != nil {
			err = fields.ErrorAt(file, 0, "", err)
		} else {
			made, err = parse(file, text.Data)
		}
		if err != nil {
			errs = append(errs, fields.EachError(err)...)
			var kept bool
			if made, kept = last[key]; !kept {
				continue
			}
		}
		all[key] = made
	}
	return all, errs
}
