package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/scope/agents"
)

// Proposed returns the file in which the project's repository proposes keys. Whoever writes in the directory chooses its
// content. The error wraps fs.ErrNotExist if there is none.
func (p Project) Proposed() (*folder.Text, error) {
	text, err := folder.ReadIn(p.Dir, agents.RepositoryFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s: %w", filepath.Join(p.Dir, agents.RepositoryFile), err)
	}
	return text, err
}

// Trusted returns the copy of that file that the user has trusted. The error wraps fs.ErrNotExist if there is none.
func (p Project) Trusted() (*folder.Text, error) {
	text, err := folder.ReadIn(filepath.Dir(p.trusted()), filepath.Base(p.trusted()))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s: %w", p.trusted(), err)
	}
	return text, err
}

func (p Project) trusted() string { return filepath.Join(p.Base, agents.TrustedName(p.ID)) }

// Trust puts a text in force, which the user has seen.
func (p Project) Trust(text *folder.Text) error { return replace(p.trusted(), string(text.Data)) }

// Revoke removes the trusted copy. The error wraps fs.ErrNotExist if there is none.
func (p Project) Revoke() error { return os.Remove(p.trusted()) }
