package paths

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/scope"
)

// Project is a directory with an agent of its own. Its user needs neither a base
// directory nor a definition. The project's base directory is below the user's state directory, and
// holds one definition, which the user may edit.
type Project struct {
	Dir  string   // absolute, without symbolic links
	ID   scope.ID // made from the directory's name, and from its path
	Base string

	Before *Project // of another directory that was at the path before, while this one has no agent yet: see Finder.Of
	Gone   bool     // the directory is not at the path any more: see Finder.Projects

	Below string   // where in Dir the command works; "" is Dir itself. See ProjectAt
	Above *Project // of a directory that has no agent: the nearest one above that has. See ProjectAt

	is string // the identity of the directory; "": it has none that lasts
}

// A Finder finds projects. DirOf returns dir of the text of a definition; nil: a project that needs that is ErrOld.
type Finder struct {
	DirOf func(text []byte) (string, error)
}

// ErrOld is the error of a project that a version up to November 2026 may have made: its definition has to be read.
var ErrOld = errors.New("the project may be an old one")

// Of returns the project of an existing directory. A directory that was made anew at the path of a project is another one, with a base
// of its own.
func (f Finder) Of(dir string) (Project, error) {
	real, err := filepath.Abs(dir)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	var info os.FileInfo
	if err == nil {
		info, err = os.Stat(real)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Project{}, fmt.Errorf("--dir %s: no such directory: give an existing one", dir)
	}
	if err != nil {
		return Project{}, fmt.Errorf("--dir: %w: give an existing directory", err)
	}
	if !info.IsDir() {
		return Project{}, fmt.Errorf("--dir %q is no directory: give the directory of a project", dir)
	}
	if !utf8.ValidString(real) {
		return Project{}, fmt.Errorf("--dir %q is not UTF-8: rename it", real)
	}
	home, err := StateHome()
	if err != nil {
		return Project{}, err
	}
	is := identityAt(real)
	at := func(hash int, salt string) Project {
		id := projectID(real, salt, hash)
		return Project{Dir: real, ID: id, Base: filepath.Join(home, "scopefs", string(id)), is: is}
	}
	anew := at(hashBytes, "\x00"+is)
	if is != "" && anew.Exists() {
		return anew, nil
	}
	p := at(hashBytes, "")
	if old := at(oldHashBytes, ""); !p.Exists() && old.Exists() {
		if f.DirOf == nil {
			return p, ErrOld
		}
		if old.mine(f) {
			p = old
		}
	}
	if p.Exists() && p.isOther(is) {
		anew.Before = f.latest(p)
		p = anew
	}
	return p, nil
}

// latest returns the project whose directory was the last one at the path of p, as far as definitions can be read; else p.
func (f Finder) latest(p Project) *Project {
	var last time.Time
	for _, base := range directories(filepath.Dir(p.Base)) {
		of := Project{Dir: p.Dir, ID: scope.ID(filepath.Base(base)), Base: base}
		info, err := os.Stat(of.identityFile())
		if err == nil && f.DirOf != nil && info.ModTime().After(last) && of.mine(f) {
			p, last = of, info.ModTime()
		}
	}
	return &p
}

// hashBytes is how many bytes of a path's hash an id has. An agent chooses names of
// directories below its project, and must not find one whose path has the id of another project.
const hashBytes = 8

// oldHashBytes is hashBytes of versions up to November 2026. Their projects keep their ids.
const oldHashBytes = 4

// mine reports whether the definition is of this project, and not of a directory whose path
// has the same few bytes of a hash. A definition that is no YAML is: the command says why.
func (p Project) mine(f Finder) bool {
	text, err := os.ReadFile(p.Definition())
	if err != nil {
		return false
	}
	dir, err := f.DirOf(text)
	return err != nil || dir == p.Dir
}

// maxName is how many bytes of an id are the directory's name.
const maxName = 40

// projectID returns an id for a path: the directory's name as far as an id may hold it,
// and bytes of a hash of the path, which differs for two directories of one name, and of a salt.
func projectID(path, salt string, bytes int) scope.ID {
	name := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9':
			return r
		case 'A' <= r && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, filepath.Base(path))
	name = strings.Trim(name[:min(len(name), maxName)], "-")
	sum := sha256.Sum256([]byte(path + salt))
	return scope.ID(strings.TrimLeft(name+"-", "-") + hex.EncodeToString(sum[:bytes]))
}

// Short returns the directory's name in the id, by which its user knows the project; "": the id has none.
func (p Project) Short() string {
	id := string(p.ID)
	return strings.TrimSuffix(id[:max(strings.LastIndexByte(id, '-'), 0)], "-")
}

// Named reports whether a name is the project's id, or its short name.
func (p Project) Named(name string) bool {
	return name != "" && (name == string(p.ID) || name == p.Short())
}

// Projects returns the user's projects with a name, see Named, or of an absolute path; "": all of them. By its id and its path it also
// returns one whose directory is gone, or another one now.
func (f Finder) Projects(name string) (found []Project, err error) {
	home, err := StateHome()
	if err != nil || f.DirOf == nil {
		return nil, err
	}
	all, err := os.ReadDir(filepath.Join(home, "scopefs"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range all {
		p := Project{ID: scope.ID(entry.Name()), Base: filepath.Join(home, "scopefs", entry.Name())}
		if name != "" && !p.Named(name) && !filepath.IsAbs(name) {
			continue
		}
		text, err := os.ReadFile(p.Definition())
		if err != nil {
			continue
		}
		if p.Dir, err = f.DirOf(text); err != nil || filepath.IsAbs(name) && p.Dir != name {
			continue
		}
		if is, err := f.Of(p.Dir); err == nil && is.ID == p.ID {
			found = append(found, is)
		} else if name == string(p.ID) || filepath.IsAbs(name) {
			p.Gone = true
			found = append(found, p)
		}
	}
	return found, err
}

// Find returns the project of dir or of the nearest directory above it; false if
// scopefs was used with none of them. That of a directory that was made anew may not exist.
func (f Finder) Find(dir string) (Project, bool, error) {
	p, err := f.Of(dir)
	for err == nil && !p.Exists() && p.Before == nil && p.Dir != "/" {
		p, err = f.Of(filepath.Dir(p.Dir))
	}
	return p, err == nil && (p.Exists() || p.Before != nil), err
}

// Exists reports whether the project has a definition.
func (p Project) Exists() bool {
	_, err := os.Stat(p.Definition())
	return err == nil
}

// exists is Exists with an error for a definition that cannot be looked up: there may be one. The restrictions of an earlier
// directory hold for the one that was made anew, and so it counts.
func (p Project) exists() (bool, error) {
	if p.Before != nil {
		return true, nil
	}
	_, err := os.Stat(p.Definition())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("--dir: whether %s has an agent: %w: correct this, for its rules would hold", p.Dir, err)
	}
	return true, nil
}

// Definition returns the file of the project's definition.
func (p Project) Definition() string {
	return filepath.Join(p.Base, "agents.d", string(p.ID)+".md")
}

// Make writes the project's definition, unless there is one. It refuses directories that
// hold more than a project. hide adds the rules that hide secrets.
func (p Project) Make(hide bool) error { return p.MakeAs(p.Text(hide)) }

// MakeAs is Make with the text of the definition.
func (p Project) MakeAs(text string) error {
	if err := p.refused(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(p.Definition()), 0o700); err != nil {
		return fmt.Errorf("state of the project: %w: set XDG_STATE_HOME to a directory that can be written to", err)
	}
	if _, err := os.Stat(p.identityFile()); errors.Is(err, fs.ErrNotExist) && p.is != "" {
		if err := Replace(p.identityFile(), p.is+"\n"); err != nil {
			return err
		}
	}
	if p.Exists() {
		return nil
	}
	return Replace(p.Definition(), text)
}

// Text returns the definition that Make writes. That of a linked worktree has the repository as a root.
func (p Project) Text(hide bool) string {
	view := fmt.Sprintf(viewFlow, changesAuto)
	w, _ := WorktreeOf(p.Dir)
	if hide || w != nil {
		view = viewBlock
		if hide {
			view += secretsText
		}
		view += fmt.Sprintf(changesBelow, changesAuto)
	}
	if w != nil {
		view += fmt.Sprintf(rootBelow, w.Common, w.Name)
	}
	return strings.TrimSuffix(p.first(), definitionEnd) + view + definitionEnd
}

// first returns the first text of the definition.
func (p Project) first() string { return fmt.Sprintf(definition, p.ID, p.Dir) }

// Replace writes a file of the project's base whole or not at all: two commands may start at the same time.
func Replace(name, text string) error {
	if err := durable.ReplaceAt(name, []byte(text), durable.Options{Shared: true}); err != nil {
		return fmt.Errorf("state of the project: %w", err)
	}
	return nil
}

// The lines of a definition after its first text, where %s is a value of view: {changes}.
const (
	definitionEnd = "---\n"
	viewFlow      = "view: {changes: %s}\n"
	viewBlock     = "view:\n" // secretsText and changesBelow follow it
	changesBelow  = "  changes: %s\n"
	rootBelow     = "  roots: [{dir: %q, worktree: %q}]\n"
	changesAuto   = "auto" // agents.ChangesAuto
)

// ours matches the lines, but secretsText, that commands add to the first text of a definition.
var ours = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^(network: \{presets: \[[a-z0-9._-]+(, [a-z0-9._-]+)*\]\}|view:|(view: \{|  )changes: (auto|direct|held|kept)(\}|)|` +
		`  roots: \[\{dir: "[^\n]*", worktree: "[^\n]*"\}\])\n`)
})

// Unedited reports whether each line of a definition is exactly one that scopefs itself writes. Its user may have written
// any other text: what a flag would add is then for him to write.
func (p Project) Unedited(text string) bool {
	return ours().ReplaceAllString(strings.NewReplacer(secretsText, "", patternsText(), "").Replace(text), "") == p.first()
}

// definition is the first text of a project's definition. %q is valid in YAML for a path
// in UTF-8 alone: ProjectOf refuses others.
const definition = `---
name: %s
dir: %q
protect: ["*"]
sandbox: {home: lasting}
---
`

// Trusted returns the file with the copy of the RepositoryFile that is in force.
func (p Project) Trusted() string {
	return filepath.Join(p.Base, "agents.d", string(p.ID)+TrustedSuffix)
}

// TrustedSuffix ends the names of trusted copies of RepositoryFiles, in the directory of definitions.
const TrustedSuffix = ".trusted.yaml"

// Denied returns the file with the hash of the RepositoryFile that the user has denied last.
func (p Project) Denied() string { return filepath.Join(p.Base, "denied") }

// InForce reports whether there is a trusted copy.
func (p Project) InForce() bool {
	_, err := os.Lstat(p.Trusted())
	return err == nil
}

// Proposes reports whether there may be a RepositoryFile, or a decision about one.
func (p Project) Proposes() bool {
	return slices.ContainsFunc([]string{filepath.Join(p.Dir, RepositoryFile), p.Trusted(), p.Denied()}, func(name string) bool {
		_, err := os.Lstat(name)
		return !errors.Is(err, fs.ErrNotExist)
	})
}

// refused returns an error for a directory that holds more than a project.
func (p Project) refused() error {
	return Refuse("--dir", p.Dir, "go to the directory of a project, or give it with --dir", nil, filepath.Dir(p.Base))
}

// Refuse returns an error, which begins with what and ends with remedy, for a directory that holds more than a project: the system, a
// home directory, the user's or one of homes, or what scopefs keeps, in own as well.
func Refuse(what, dir, remedy string, homes []string, own ...string) error {
	if dir == "/" {
		return fmt.Errorf("%s: / is the whole system: %s", what, remedy)
	}
	for _, tmp := range []string{"/tmp", "/var/tmp", os.TempDir()} {
		if same(dir, tmp) {
			return fmt.Errorf("%s: %s holds other programs' files: %s", what, dir, remedy)
		}
	}
	if home, err := os.UserHomeDir(); err == nil {
		homes = append(homes, home)
	}
	for _, home := range homes {
		for at := Real(home); ; at = filepath.Dir(at) {
			if same(dir, at) {
				return fmt.Errorf("%s: %s holds your home directory, with keys and passwords: %s", what, dir, remedy)
			}
			if at == "/" {
				break
			}
		}
	}
	for _, system := range []string{"/etc", "/boot", "/proc", "/sys", "/usr/bin", "/usr/sbin", "/usr/lib"} {
		if Meet(dir, system) {
			return fmt.Errorf("%s: %s is part of the system: %s", what, dir, remedy)
		}
	}
	for _, system := range []string{"/dev", "/home", "/opt", "/run", "/srv", "/usr/local"} {
		if same(dir, system) {
			return fmt.Errorf("%s: %s is part of the system: %s", what, dir, remedy)
		}
	}
	own = append(own, Host.Base, Host.State)
	if user, err := UserDir(); err == nil { // also before it exists: the agent would make it
		if _, err := Resolve(user); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		own = append(own, user)
	}
	if base := os.Getenv("SCOPEFS_BASE"); base != "" {
		own = append(own, base)
	}
	own = append(own, basesAt(dir)...)
	if daemon, err := OfUser(); err == nil {
		own = append(own, daemon.Base)
	}
	for _, kept := range own {
		if Meet(dir, kept) {
			return fmt.Errorf("%s: %s is, holds or is in %s, where scopefs has definitions and logs of agents: %s", what, dir, kept, remedy)
		}
	}
	return nil
}

// same reports whether two names are of one existing file.
func same(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// basesAt returns base directories, with a log, that dir is, is in, or holds down to two
// levels. In one that is deeper, protect keeps the definitions.
func basesAt(dir string) (bases []string) {
	var near []string
	for at := dir; at != "/"; at = filepath.Dir(at) {
		near = append(near, at)
	}
	below := directories(dir)
	near = append(near, below...)
	for _, at := range below {
		near = append(near, directories(at)...)
	}
	return slices.DeleteFunc(near, func(at string) bool {
		_, log := os.Stat(filepath.Join(at, "state", "audit"))
		_, definitions := os.Stat(filepath.Join(at, "agents.d"))
		return log != nil || definitions != nil
	})
}
