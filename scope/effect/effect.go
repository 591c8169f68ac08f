// Package effect describes what a tool call or a command has changed in a view, for its caller.
package effect

import (
	"path"
	"slices"
	"strings"
)

// Effects are the changes of a tool call or a command. Their lists have [Max] objects at most, removed ones first; Counts has all.
// Paths are relative to the view, in roots those of the host.
type Effects struct {
	Nothing bool           `json:"nothing,omitempty"` // the view has seen no change
	Unknown string         `json:"unknown,omitempty"` // why the view does not know
	Direct  bool           `json:"direct,omitempty"`  // because the definition says that changes are not kept
	Removed []Object       `json:"removed,omitempty"`
	Moved   []Object       `json:"moved,omitempty"`
	Changed []Object       `json:"changed,omitempty"`
	Modes   []Object       `json:"modes,omitempty"` // only their attributes changed
	Created []Object       `json:"created,omitempty"`
	LeftOut int            `json:"left_out,omitempty"` // objects that are in no list
	Counts  Counts         `json:"counts,omitzero"`
	By      map[string]int `json:"by,omitempty"` // objects, by the program that changed them: Max of these

	Refused        []Refusal `json:"refused,omitempty"`
	RefusedLeftOut int       `json:"refused_left_out,omitempty"`

	Roots map[string]Effects `json:"roots,omitempty"` // by their directory: Counts, which those above have, too, or Unknown. Those without changes are not there

	Held bool `json:"held,omitempty"` // rules hold some paths: their changes are in no list
}

// Max bounds the objects in the lists of Effects, and the programs.
const Max = 100

// Object is a file or a directory.
type Object struct {
	Path  string   `json:"path"` // of a directory that stands for what is below it with a slash at its end; .git/* for what git keeps there
	From  string   `json:"from,omitempty"`
	Files int      `json:"files,omitempty"` // that a directory stands for
	Mode  string   `json:"mode,omitempty"`  // before and after
	Marks []string `json:"marks,omitempty"`
}

// The marks of an Object, beside NotKept and a reason.
const (
	NotKept    = "not kept: "
	Others     = "changed by others, too"
	Open       = "open for writing"
	Executable = "executable"
	FIFO       = "a FIFO: programs that open it wait"
	Read       = "the host may execute or read it"
)

// Counts are numbers of objects.
type Counts struct {
	Removed int `json:"removed,omitempty"`
	Moved   int `json:"moved,omitempty"`
	Changed int `json:"changed,omitempty"`
	Modes   int `json:"modes,omitempty"`
	Created int `json:"created,omitempty"`
}

// Sum returns the number of all objects.
func (c Counts) Sum() int { return c.Removed + c.Moved + c.Changed + c.Modes + c.Created }

// Refusal is an operation that the agent's rules refused.
type Refusal struct {
	Path string `json:"path"`
	Op   string `json:"op"`
	Rule string `json:"rule,omitempty"`
	Host bool   `json:"host,omitempty"` // the host may execute it later: protect refused it
}

// List is what was done to some objects.
type List struct {
	Verb, Sum string // before their paths, and after their number
	Objects   *[]Object
	Count     *int
	Always    bool // a text has each of them
}

// Lists returns the lists in the order of texts: removed, moved, changed, modes, created.
func (e *Effects) Lists() [5]List {
	return [...]List{
		{"removed", "removed", &e.Removed, &e.Counts.Removed, true},
		{"moved", "moved", &e.Moved, &e.Counts.Moved, true},
		{"changed", "changed", &e.Changed, &e.Counts.Changed, false},
		{"attributes of", "with other attributes", &e.Modes, &e.Counts.Modes, false},
		{"created", "created", &e.Created, &e.Counts.Created, false},
	}
}

// Listed returns the objects of all lists.
func (e *Effects) Listed() (all []*Object) {
	for _, l := range e.Lists() {
		for i := range *l.Objects {
			all = append(all, &(*l.Objects)[i])
		}
	}
	return all
}

// Hide moves objects with a name for which hidden holds from the lists to LeftOut.
func (e *Effects) Hide(hidden func(rel string) bool) {
	for _, l := range e.Lists() {
		*l.Objects = slices.DeleteFunc(*l.Objects, func(o Object) bool {
			gone := hidden(strings.TrimSuffix(o.Path, "/")) || o.From != "" && hidden(strings.TrimSuffix(o.From, "/"))
			if gone {
				e.LeftOut++
			}
			return gone
		})
	}
}

// built are names of files that programs read to decide what they execute, beside those that begin with a dot.
var built = []string{
	"Makefile", "makefile", "GNUmakefile", "CMakeLists.txt", "justfile", "Justfile", "Rakefile", "Gruntfile.js", "gulpfile.js", "Taskfile.yml",
	"package.json", "composer.json", "pyproject.toml", "setup.py", "setup.cfg", "conftest.py", "tox.ini", "noxfile.py", "build.rs",
	"build.gradle", "pom.xml", "Dockerfile", "docker-compose.yml", "compose.yaml", "Jenkinsfile", "CLAUDE.md", "AGENTS.md", "GEMINI.md",
}

// Configures reports whether a path is one that the host's programs may execute or read as configuration. Of what is below .git
// these are the configuration and hooks.
func Configures(rel string) bool {
	for dir, rest := "", rel; rest != ""; {
		dir, rest, _ = strings.Cut(rest, "/")
		if dir == ".git" {
			return rest == "config" || rest == "config.worktree" || strings.HasPrefix(rest, "hooks/") && !strings.HasSuffix(rest, ".sample")
		}
		if strings.HasPrefix(dir, ".") {
			return true
		}
	}
	return slices.Contains(built, path.Base(rel))
}
