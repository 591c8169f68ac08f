// Package folder reads the operator's files of a base directory by descriptor: never through links, never a file with a
// second name, which may be in a view, and no file twice that has not changed.
package folder

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
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
	Rel  string // relative to the base directory; absolute in a user's settings
	user bool   // of a user's settings: see OpenUser
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
	return Folder{dir, rel, false}, nil
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
	return Folder{os.NewFile(uintptr(fd), name), path.Join(d.Rel, name), d.user}, nil
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

// ReadFiles reads the .yaml files in a directory of a user's settings and in that of a base directory, by the file's name:
// relative to the base, absolute in the user's settings. It returns an error for each file that does not load, and keeps what
// last has of it. An empty name of a directory stands for none.
func ReadFiles[T any](base, user, rel string, parse func(file string, data []byte) (T, error), last map[string]T) (map[string]T, []error) {
	all, errs := map[string]T{}, []error(nil)
	for name, open := range layers(base, user, rel) {
		dir, err := open()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var more []error
		if err == nil {
			more, err = readAll(dir, parse, last, all)
			dir.Close()
		}
		if err != nil {
			more = []error{&fields.FileError{File: name, Err: err}}
			for file, made := range last {
				if path.Dir(file) == name {
					all[file] = made
				}
			}
		}
		errs = append(errs, more...)
	}
	return all, errs
}

// layers returns the directories of one name, the base's first, each with its name and a function that opens it.
func layers(base, user, rel string) iter.Seq2[string, func() (Folder, error)] {
	return func(yield func(string, func() (Folder, error)) bool) {
		if base != "" && !yield(rel, func() (Folder, error) { return Open(base, rel) }) {
			return
		}
		if user != "" {
			yield(path.Join(user, rel), func() (Folder, error) { return OpenUser(base, user, rel) })
		}
	}
}

// ReadFirst reads a file of a base directory or, if there is none, of a user's settings. It returns the file's name as well,
// and an error of type *fields.FileError unless neither has one.
func ReadFirst(base, user, rel, name string) (file string, text *Text, err error) {
	for of, open := range layers(base, user, rel) {
		file = path.Join(of, name)
		dir, err := open()
		if err == nil {
			text, err = dir.Read(name, nil)
			dir.Close()
		}
		if err == nil {
			return file, text, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return file, nil, fields.ErrorAt(file, 0, "", err)
		}
	}
	return "", nil, fs.ErrNotExist
}

// readAll adds the .yaml files in a directory to all.
func readAll[T any](dir Folder, parse func(file string, data []byte) (T, error), last, all map[string]T) (errs []error, err error) {
	names, err := dir.Names(".yaml")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		file := path.Join(dir.Rel, name)
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
			if made, kept = last[file]; !kept {
				continue
			}
		}
		all[file] = made
	}
	return errs, nil
}
