package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// Trust is the file in which a project's repository proposes keys, and what the user has decided about it.
type Trust struct {
	Text, Last []byte // of the file, and of the copy that is in force
	Hash       string // SHA-256 of Text, in hex; "": there is no file
	LastHash   string // "": nothing is in force
	Denied     string // the Hash that the user denied last; NoFile: the user keeps what is in force without a file
}

// NoFile is in place of a hash where a repository has no file.
const NoFile = "none"

// TrustOf returns that of a project. Whoever writes in the project's directory chooses the file's content.
func TrustOf(p Project) (t Trust, err error) {
	denied, err := os.ReadFile(p.Denied())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return t, err
	}
	t.Denied = strings.TrimSpace(string(denied))
	if t.Last, t.LastHash, err = read(filepath.Split(p.Trusted())); err != nil {
		return t, err
	}
	t.Text, t.Hash, err = read(p.Dir, paths.RepositoryFile)
	return t, err
}

// Waits reports whether the user has not decided about the file as it is.
func (t Trust) Waits() bool { return t.Hash != t.LastHash && t.Denied != cmp.Or(t.Hash, NoFile) }

// Accept puts the text in force, which the user has seen. Without a file it takes what was trusted out of force.
func Accept(p Project, t Trust) error {
	if err := os.Remove(p.Denied()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if t.Hash == "" {
		return Revoke(p)
	}
	return paths.Replace(p.Trusted(), string(t.Text))
}

// Deny keeps the user's decision that the text is not in force.
func Deny(p Project, t Trust) error { return paths.Replace(p.Denied(), cmp.Or(t.Hash, NoFile)+"\n") }

// Revoke removes the trusted copy.
func Revoke(p Project) error { return os.Remove(p.Trusted()) }

// ProjectOfBase returns the project whose base it is; false for another base.
func ProjectOfBase(p Paths) (made Project, ok bool) {
	if p.Base == "" || !paths.InProjects(p.Base) {
		return made, false
	}
	made.Base, made.ID = p.Base, scope.ID(filepath.Base(p.Base))
	text, err := os.ReadFile(made.Definition())
	if err == nil {
		made.Dir, err = agents.DirOf(text)
	}
	return made, err == nil && filepath.IsAbs(made.Dir)
}

// repositoryText returns the stores of the RepositoryFile that the user has trusted for the project of the base, as the text of
// a scopefs.yaml.
func repositoryText(p Paths) (all []text) {
	file, data := agents.TrustedName(scope.ID(filepath.Base(p.Base))), []byte(p.Proposal)
	if p.Proposal == "" && paths.InProjects(p.Base) {
		data, _, _ = read(filepath.Split(filepath.Join(p.Base, file))) // of none that can be read no agent loads
	}
	if len(data) == 0 {
		return nil
	}
	for _, store := range agents.StoresOf(agents.Host{Foreign: yamlProcess{}}, data) {
		all = append(all, text{file, fmt.Appendf(nil, "stores: {%s: {}}\n", store)})
	}
	return all
}

// read returns a file of a directory, and its SHA-256 in hex; "" if there is none.
func read(dir, name string) (text []byte, hash string, err error) {
	found, err := folder.ReadIn(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
	}
	return found.Data, found.Sum, nil
}
