package config

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/scope/agents"
)

// UserDir returns the directory of the user's settings for all of his bases: scopefs.yaml, agents.d, presets.d, programs.d and
// protect.d.
func UserDir() (string, error) {
	dir, err := xdg("XDG_CONFIG_HOME", ".config")
	return filepath.Join(dir, "scopefs"), err
}

// userOf returns the directory of settings that hold for a base: that of this process's user, if the base is the user's own
// or one of a project.
func userOf(base string) string {
	user, err := UserDir()
	own, err2 := OfUser()
	if errors.Join(err, err2) != nil || real(base) != real(own.Base) && !inProjects(base) {
		return ""
	}
	return user
}

// inProjects reports whether a base is that of a project.
func inProjects(base string) bool {
	home, err := StateHome()
	return err == nil && filepath.Dir(real(base)) == real(filepath.Join(home, "scopefs"))
}

// Served returns the directories of a base that the user's daemon serves: the user's own, or one of a project.
func Served(base string) (Paths, bool) {
	own, err := OfUser()
	p := Paths{Base: base}
	if err == nil && own.Run != "" && real(base) == real(own.Base) {
		p.State, p.Run = own.State, own.Run
	} else if !inProjects(base) {
		return p, false
	}
	p, err = p.Complete()
	return p, err == nil
}

// userText returns the text of the user's scopefs.yaml, if there is one.
func (p Paths) userText() ([]text, error) {
	if p.User == "" {
		return nil, nil
	}
	own, err := OfUser()
	if err != nil {
		return nil, err
	}
	for _, bases := range []string{own.Base, filepath.Dir(own.State)} { // agents write there
		if at := real(bases); strings.HasPrefix(real(p.User), at+"/") {
			return nil, &fields.FileError{File: p.User, Err: fmt.Errorf("is in %s, where agents have files: move it out", at)}
		}
	}
	dir, err := folder.OpenUser(p.Base, p.User, "")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &fields.FileError{File: p.User, Err: err}
	}
	defer dir.Close()
	file := filepath.Join(p.User, agents.HostFile)
	read, err := dir.Read(agents.HostFile, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &fields.FileError{File: file, Err: err}
	}
	return []text{{file, read.Data}}, nil
}

// Layer returns whose a file is: "user", "project" or "base"; "built-in" for "".
func (p Paths) Layer(file string) string {
	switch {
	case file == "":
		return "built-in"
	case p.User != "" && strings.HasPrefix(file, p.User+"/"):
		return "user"
	case inProjects(p.Base):
		return "project"
	}
	return "base"
}

// Projects returns the directories of the bases of the user's projects.
func Projects() (all []Paths) {
	home, err := StateHome()
	if err != nil {
		return nil
	}
	for _, base := range folder.Directories(filepath.Join(home, "scopefs")) {
		if p, err := (Paths{Base: base}).Complete(); err == nil {
			all = append(all, p)
		}
	}
	return all
}
