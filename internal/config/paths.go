package config

import (
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/scope/agents"
)

// Paths and Project are those of package paths, which reads no definition.

type (
	// Paths is [paths.Paths].
	Paths = paths.Paths
	// Project is [paths.Project].
	Project = paths.Project
)

// finder reads the definitions of old projects.
func finder() paths.Finder { return paths.Finder{DirOf: agents.DirOf} }

// ProjectOf returns the project of an existing directory.
func ProjectOf(dir string) (Project, error) { return finder().Of(dir) }

// ProjectAt returns the project of --dir: see [paths.Finder.At].
func ProjectAt(dir string) (Project, error) { return finder().At(dir) }

// FindProject returns the project of dir or of the nearest directory above it; false if scopefs was used with none of them.
func FindProject(dir string) (Project, bool) {
	p, found, _ := finder().Find(dir)
	return p, found
}
