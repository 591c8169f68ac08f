package scope

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// LoadDefinitions reads {base}/agents.d/*.md in the order of their names. A
// file that does not load gives an error and no definition. It refuses a
// directory inside {base}/agents, where an agent could write its own rules.
func LoadDefinitions(base string) (map[ID]*Definition, []error) {
	defs := map[ID]*Definition{}
	dir, err := openDefinitions(base)
	if err != nil {
		return defs, []error{err}
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return defs, []error{fmt.Errorf("read agents.d: %w: check its file system", err)}
	}
	slices.Sort(names)
	var errs []error
	for _, name := range names {
		if !strings.HasSuffix(name, ".md") || strings.HasPrefix(name, ".") {
			continue
		}
		def, err := loadDefinition(dir, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		defs[def.Name] = def
	}
	return defs, errs
}

func openDefinitions(base string) (*os.File, error) {
	path := filepath.Join(base, "agents.d")
	// A link is followed: where it led is asked of the descriptor.
	dir, err := os.OpenFile(path, unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no definitions: %q does not exist: create it", path)
	}
	if err != nil {
		return nil, fmt.Errorf("definitions: %w: make it a directory the daemon may read", err)
	}
	where, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if err == nil {
		err = outsideViews(where, base)
	}
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("definitions: %w", err)
	}
	return dir, nil
}

func outsideViews(where, base string) error {
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
		return fmt.Errorf("%q is inside the views, where agents write: move agents.d out of %q", where, views)
	}
	return nil
}

// loadDefinition reads one file of dir. It takes only a regular file with one
// name: a link may lead into a view, and so may a second name.
func loadDefinition(dir *os.File, name string) (*Definition, error) {
	fail := func(err error) (*Definition, error) { return nil, &DefinitionError{File: name, Err: err} }
	// O_NONBLOCK, for a FIFO would make open wait for a writer.
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return fail(errors.New("is a symbolic link: put the file itself here"))
	}
	if err != nil {
		return fail(fmt.Errorf("open: %w: make it a file the daemon may read", err))
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail(fmt.Errorf("stat: %w: check its file system", err))
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fail(errors.New("is no regular file: remove it"))
	case st.Nlink != 1:
		return fail(fmt.Errorf("has %d names, and one may be in a view: replace it by a copy", st.Nlink))
	}
	text, err := io.ReadAll(io.LimitReader(f, maxDefinition+1))
	if err != nil {
		return fail(fmt.Errorf("read: %w: check its file system", err))
	}
	return ParseDefinition(name, text)
}
