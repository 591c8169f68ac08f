package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/scopefs/scopefs/scope/agents"
)

// ProjectAt returns the project of --dir. That of "." holds the working directory, which a client of a team may start
// anywhere in: the nearest directory at or above it that has an agent, else the nearest one with a RepositoryFile, else the
// working directory itself. Directories above a repository of git are not the repository's project. Every other dir is exact.
func ProjectAt(dir string) (Project, error) {
	at, err := ProjectOf(dir)
	if err != nil || filepath.Clean(dir) != "." || at.Exists() {
		return at, err
	}
	root, owner := Project{}, ownerOf(at.Dir)
	for p := at; ; {
		exists := p.Exists()
		if exists || root.Dir == "" && p.proposes(owner) {
			root = p
		}
		if exists || p.Dir == "/" || isRepository(p.Dir) {
			break
		}
		if p, err = ProjectOf(filepath.Dir(p.Dir)); err != nil {
			return at, err
		}
	}
	switch root.Dir {
	case "", at.Dir:
		return at, nil
	}
	root.Below, err = filepath.Rel(root.Dir, at.Dir)
	return root, err
}

// proposes reports whether the directory can have an agent and a RepositoryFile, and both belong to owner: another user must
// not choose a larger directory than the one meant.
func (p Project) proposes(owner int) bool {
	file := filepath.Join(p.Dir, agents.RepositoryFile)
	info, err := os.Lstat(file)
	return err == nil && info.Mode().IsRegular() && ownerOf(file) == owner && ownerOf(p.Dir) == owner && p.refused() == nil
}

// ownerOf returns the owner of what a name is; -1 for none.
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
