package agents

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
)

// The directories of a base directory that define agents.
const (
	agentsDir     = "agents.d"
	extensionsDir = "extensions.d"
	skillsDir     = "skills"
	activitiesDir = "activities.d"
)

// folder is an open directory of definitions.
type folder struct {
	*os.File
	rel string // relative to the base directory
}

// openFolder opens a directory of base. It rejects one inside {base}/agents,
// where an agent could write its own rules.
func openFolder(base, rel string) (folder, error) {
	// It follows a symbolic link. The check uses the descriptor.
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

// names returns the names in the directory that end in suffix, sorted. It omits
// hidden files.
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

// sub opens a subdirectory. It follows no symbolic link.
func (d folder) sub(name string) (folder, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return folder{}, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return folder{}, errors.New("is a symbolic link: put the directory itself here")
	}
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return folder{}, err
	}
	return folder{os.NewFile(uintptr(fd), name), path.Join(d.rel, name)}, nil
}

// parsed is a parsed definition, or its errors.
type parsed struct {
	id   scope.ID
	file string // relative to the base directory
	text *text  // nil if the file could not be read
	def  *Definition
	refs []Ref
	err  error
}

// readAgents reads {base}/agents.d/*.md, sorted by name. It parses only files
// that differ from last, in parallel. at is the stamp of the directory before
// it was read.
func readAgents(base string, last map[scope.ID]*loaded) (all []*parsed, at dated, err error) {
	dir, err := openFolder(base, agentsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, at, fmt.Errorf("no definitions: %q does not exist: create it", filepath.Join(base, agentsDir))
	}
	if err != nil {
		return nil, at, fmt.Errorf("definitions: %w", err)
	}
	defer dir.Close()
	if at, err = stampOf(int(dir.Fd()), ""); err != nil {
		return nil, at, fmt.Errorf("definitions: %w: check its file system", err)
	}
	names, err := dir.names(".md")
	if err != nil {
		return nil, at, err
	}
	all = make([]*parsed, len(names))
	var wg sync.WaitGroup
	var next atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(names); i = int(next.Add(1)) - 1 {
				all[i] = readAgent(dir, names[i], stem(names[i]), last[stem(names[i])])
			}
		})
	}
	wg.Wait()
	return all, at, nil
}

func stem(name string) scope.ID { return scope.ID(strings.TrimSuffix(name, ".md")) }

// readAgent reads the definition of an agent from a file of a directory.
func readAgent(dir folder, name string, id scope.ID, last *loaded) *parsed {
	p := &parsed{id: id, file: path.Join(dir.rel, name)}
	var old *text
	if last != nil && last.file == p.file {
		old = last.text
	}
	if p.text, p.err = dir.read(name, old); p.err != nil {
		p.err = fields.ErrorAt(p.file, 0, id, p.err)
		return p
	}
	if p.text.is(old) {
		p.def, p.refs, p.err = last.def, last.refs, last.parsed.err
		return p
	}
	p.def, p.refs, p.err = parseDefinition(p.file, id, p.text.data)
	return p
}

// readSkills returns the names of the directories {base}/skills/<name>/ that
// have a SKILL.md. It omits symbolic links and names that cannot be in a list.
func readSkills(base string) ([]string, error) {
	dir, err := openFolder(base, skillsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &fields.FileError{File: skillsDir, Err: err}
	}
	defer dir.Close()
	names, err := dir.names("")
	if err != nil {
		return nil, &fields.FileError{File: skillsDir, Err: err}
	}
	return slices.DeleteFunc(names, func(name string) bool { return !isPlainName(name, maxSkill) || !isSkill(dir, name) }), nil
}

// maxSkill limits the name of a skill, in bytes.
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

// HostFile is what the operator has set for all agents.
const HostFile = "scopefs.yaml"
