package scope

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The directories of a base directory that say what agents are.
const (
	agentsDir     = "agents.d"
	extensionsDir = "extensions.d"
	skillsDir     = "skills"
)

// folder is one of these directories, open.
type folder struct {
	*os.File
	rel string // to the base directory
}

// openFolder opens a directory of base. It refuses one inside {base}/agents,
// where an agent could write its own rules.
func openFolder(base, rel string) (folder, error) {
	// A link is followed: where it led is asked of the descriptor.
	dir, err := os.OpenFile(filepath.Join(base, rel), unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return folder{}, err
	}
	if err != nil {
		return folder{}, fmt.Errorf("%w: make it a directory the daemon may read", err)
	}
	where, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if err == nil {
		err = outsideViews(where, base, rel)
	}
	if err != nil {
		dir.Close()
		return folder{}, err
	}
	return folder{dir, rel}, nil
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

// names returns what is in the directory and ends in suffix, sorted; hidden
// files are left out.
func (d folder) names(suffix string) ([]string, error) {
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w: check its file system", d.rel, err)
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return strings.HasPrefix(name, ".") || !strings.HasSuffix(name, suffix)
	})
	slices.Sort(names)
	return names, nil
}

// read reads one file. It takes only a regular file with one name: a link may
// lead into a view, and so may a second name.
func (d folder) read(name string) ([]byte, error) {
	// O_NONBLOCK, for a FIFO would make open wait for a writer.
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, errors.New("is a symbolic link: put the file itself here")
	}
	if err != nil {
		return nil, fmt.Errorf("open: %w: make it a file the daemon may read", err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat: %w: check its file system", err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, errors.New("is no regular file: remove it")
	case st.Nlink != 1:
		return nil, fmt.Errorf("has %d names, and one may be in a view: replace it by a copy", st.Nlink)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxDefinition+1))
	if err != nil {
		return nil, fmt.Errorf("read: %w: check its file system", err)
	}
	return text, nil
}

// parsed is a definition, or what is wrong with it.
type parsed struct {
	id   ID
	def  *Definition
	refs []ref
	err  error
}

// readAgents reads {base}/agents.d/*.md in the order of their names.
func readAgents(base string) ([]parsed, error) {
	dir, err := openFolder(base, agentsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no definitions: %q does not exist: create it", filepath.Join(base, agentsDir))
	}
	if err != nil {
		return nil, fmt.Errorf("definitions: %w", err)
	}
	defer dir.Close()
	names, err := dir.names(".md")
	if err != nil {
		return nil, err
	}
	all := make([]parsed, 0, len(names))
	for _, name := range names {
		p := parsed{id: ID(strings.TrimSuffix(name, ".md"))}
		text, err := dir.read(name)
		if err != nil {
			p.err = wrongAt(path.Join(agentsDir, name), 0, p.id, err)
		} else {
			p.def, p.refs, p.err = parseDefinition(name, text)
		}
		all = append(all, p)
	}
	return all, nil
}

// readSkills returns the names of the directories {base}/skills/<name>/ that
// hold a SKILL.md. A link, and a name that no list could hold, is none.
func readSkills(base string) ([]string, error) {
	dir, err := openFolder(base, skillsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &DefinitionError{File: skillsDir, Err: err}
	}
	defer dir.Close()
	names, err := dir.names("")
	if err != nil {
		return nil, &DefinitionError{File: skillsDir, Err: err}
	}
	return slices.DeleteFunc(names, func(name string) bool { return !isPlainName(name, maxSkill) || !isSkill(dir, name) }), nil
}

// maxSkill bounds the name of a skill in bytes.
const maxSkill = 128

func isSkill(dir folder, name string) bool {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	err = unix.Fstatat(fd, "SKILL.md", &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
}
