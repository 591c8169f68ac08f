package paths

import (
	"errors"
	"path/filepath"
	"strings"
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
	if errors.Join(err, err2) != nil || Real(base) != Real(own.Base) && !InProjects(base) {
		return ""
	}
	return user
}

// InProjects reports whether a base is that of a project.
func InProjects(base string) bool {
	home, err := StateHome()
	return err == nil && filepath.Dir(Real(base)) == Real(filepath.Join(home, "scopefs"))
}

// Served returns the directories of a base that the user's daemon serves: the user's own, or one of a project.
func Served(base string) (Paths, bool) {
	own, err := OfUser()
	p := Paths{Base: base}
	if err == nil && own.Run != "" && Real(base) == Real(own.Base) {
		p.State, p.Run = own.State, own.Run
	} else if !InProjects(base) {
		return p, false
	}
	p, err = p.Complete()
	return p, err == nil
}

// Layer returns whose a file is: "user", "project" or "base"; "built-in" for "".
func (p Paths) Layer(file string) string {
	switch {
	case file == "":
		return "built-in"
	case p.User != "" && strings.HasPrefix(file, p.User+"/"):
		return "user"
	case InProjects(p.Base):
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
	for _, base := range directories(filepath.Join(home, "scopefs")) {
		if p, err := (Paths{Base: base}).Complete(); err == nil {
			all = append(all, p)
		}
	}
	return all
}
