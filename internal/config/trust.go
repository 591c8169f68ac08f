package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// Proposed returns the file in which the project's repository proposes keys. Whoever writes in the directory chooses its
// content. The error wraps fs.ErrNotExist if there is none.
func (p Project) Proposed() (text []byte, hash string, err error) {
	return read(p.Dir, agents.RepositoryFile)
}

// Trusted returns the copy of that file that the user has trusted. The error wraps fs.ErrNotExist if there is none.
func (p Project) Trusted() (text []byte, hash string, err error) {
	return read(filepath.Split(p.trusted()))
}

// repositoryText returns the stores of the RepositoryFile that the user has trusted for the project of the base, as the text of
// a scopefs.yaml.
func (p Paths) repositoryText() (all []text) {
	file, data := agents.TrustedName(scope.ID(filepath.Base(p.Base))), []byte(p.Proposal)
	if p.Proposal == "" && inProjects(p.Base) {
		data, _, _ = read(filepath.Split(filepath.Join(p.Base, file))) // of none that can be read no agent loads
	}
	for _, store := range agents.StoresOf(data) {
		all = append(all, text{file, fmt.Appendf(nil, "stores: {%s: {}}\n", store)})
	}
	return all
}

// read returns a file of a directory, and its SHA-256 in hex.
func read(dir, name string) (text []byte, hash string, err error) {
	found, err := folder.ReadIn(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", err
	}
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
	}
	return found.Data, found.Sum, nil
}

func (p Project) trusted() string { return filepath.Join(p.Base, agents.TrustedName(p.ID)) }

// Trust puts a text in force, which the user has seen.
func (p Project) Trust(text []byte) error { return replace(p.trusted(), string(text)) }

// Revoke removes the trusted copy. The error wraps fs.ErrNotExist if there is none.
func (p Project) Revoke() error { return os.Remove(p.trusted()) }
