package paths

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// At returns the project of --dir. That of "." holds the working directory, which a client of a team may start
// anywhere in: the nearest directory at or above it that has an agent, else the nearest one with a RepositoryFile, else the
// working directory itself. Every other dir is exact.
//
// The user's state says which directories have an agent. What is in the tree does not: an agent of a directory makes files,
// repositories of git and links below it, and must not choose by them that its rules do not hold.
func (f Finder) At(dir string) (Project, error) {
	at, err := f.Of(dir)
	if err != nil {
		return at, err
	}
	nearest, exists, err := f.nearest(at)
	if err != nil || exists && nearest.Dir == at.Dir {
		return at, err
	}
	linked := false
	if !exists {
		if nearest, linked, err = f.over(dir); err != nil {
			return at, err
		}
	}
	switch here := filepath.Clean(dir) == "."; {
	case here && exists:
		return nearest.around(at)
	case here && linked:
		return at, fmt.Errorf(
			"--dir %s: a symbolic link leads out of the project %s: go to %s, or give this path to --dir", dir, nearest.Dir, at.Dir)
	case here:
		return at.proposed(f)
	case exists || linked:
		at.Above = &nearest
	}
	return at, nil
}

// nearest returns the project of a directory, or the nearest one above it, that has an agent.
func (f Finder) nearest(p Project) (nearest Project, exists bool, err error) {
	for {
		if exists, err = p.exists(); err != nil || exists || p.Dir == "/" {
			return p, exists, err
		}
		if p, err = f.Of(filepath.Dir(p.Dir)); err != nil {
			return p, false, err
		}
	}
}

// over returns the nearest project above the names of a path as it is written, which symbolic links may lead out of.
func (f Finder) over(dir string) (over Project, exists bool, err error) {
	name, err := filepath.Abs(dir)
	for err == nil && name != "/" && !exists {
		name = filepath.Dir(name)
		if over, err = f.Of(name); err == nil {
			exists, err = over.exists()
		}
	}
	return over, exists, err
}

// around returns the project for a command that works in at, below it.
func (p Project) around(at Project) (Project, error) {
	if p.Dir == at.Dir {
		return at, nil
	}
	below, err := filepath.Rel(p.Dir, at.Dir)
	p.Below = below
	return p, err
}

// proposed returns the project of the nearest RepositoryFile, in the same repository of git, else p.
func (p Project) proposed(f Finder) (Project, error) {
	owner := ownerOf(p.Dir)
	for up := p; ; {
		if up.proposes(owner) {
			return up.around(p)
		}
		if up.Dir == "/" || isRepository(up.Dir) {
			return p, nil
		}
		var err error
		if up, err = f.Of(filepath.Dir(up.Dir)); err != nil {
			return p, err
		}
	}
}

// proposes reports whether the directory can have an agent and a RepositoryFile, and both belong to owner: another user must
// not choose a larger directory than the one meant.
func (p Project) proposes(owner int) bool {
	file := filepath.Join(p.Dir, RepositoryFile)
	info, err := os.Lstat(file)
	return err == nil && info.Mode().IsRegular() && ownerOf(file) == owner && ownerOf(p.Dir) == owner && p.refused() == nil
}

// ownerOf returns the uid that owns a file, without following a link; -1 if there is no such file.
func ownerOf(name string) int {
	info, err := os.Lstat(name)
	if err != nil {
		return -1
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

// isRepository reports whether a directory is the top of a work tree of git, by whatever is named .git there.
func isRepository(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, ".git"))
	return !errors.Is(err, fs.ErrNotExist)
}
