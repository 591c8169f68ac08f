package beneath

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is the kernel's limit of symbolic links in one resolution
// (MAXSYMLINKS). A longer chain is ELOOP: path_resolution(7).
const maxLinks = 40

// maxSteps limits the components of one resolution. It bounds the cost of a
// readlink, whatever chain of links an agent builds. The kernel has no such
// limit.
const maxSteps = 1000

// systemDirs are the read-only system directories of the sandbox, and /dev/null. Ordinary
// programs create links to them (python3 -m venv). Such a link gives an agent nothing that
// it cannot name itself. /tmp is not one of them: in the sandbox it is private, but a host
// process that works in a mounted view would follow the link to the host's /tmp.
var systemDirs = []string{
	"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc/alternatives", "dev/null",
}

// Target is the object that a path leads to when every link on it is followed.
type Target struct {
	Rel     string // relative to the scope; for System, the absolute path
	System  bool   // in a read-only system directory of the sandbox, or Beside
	Beside  bool   // in one of Root.Beside
	Missing bool   // does not exist; its nearest existing ancestor is in the scope
}

// Resolve follows every link of rel and returns the target. It returns a
// *Violation if the target is outside the scope, ELOOP for more than 40 links,
// and ENAMETOOLONG for more than 1000 components.
//
// The result describes this moment. It serves the log and the denial of links
// that lead outside. Never open a file by it.
func (r *Root) Resolve(rel string) (Target, error) {
	w := r.walker("", rel)
	w.rule = RulePath
	return w.walk(rel)
}

// Follow returns the target of a link with the given text in directory dir. It
// resolves in user space because openat2(2) cannot resolve every such text:
// absolute links below Alias, dangling links, and links that do not exist yet.
// Each step starts at the root descriptor.
//
// If hidden is not nil and reports true for a path, that path counts as
// missing. So does a path in a directory that the thread may not search
// (EACCES). The result must not reveal whether a hidden object exists. Errors
// are those of Resolve.
func (r *Root) Follow(dir, text string, hidden func(rel string) bool) (Target, error) {
	w := r.walker(dir, text)
	if w.hidden = hidden; hidden == nil {
		w.hidden = func(string) bool { return false }
	}
	return w.walk(text)
}

func (r *Root) walker(dir, text string) *walker {
	return &walker{root: r, rel: Join(dir, text), target: text, rule: RuleLink, at: components(dir), links: maxLinks, steps: maxSteps}
}

type walker struct {
	root    *Root
	rel     string                // the requested path, for the violation
	target  string                // the last text followed, for the violation
	rule    Rule                  // the rule of the violation
	at      []string              // the components resolved so far
	todo    []string              // the components left to resolve
	links   int                   // how many more links the walk may follow
	steps   int                   // how many more components the walk may resolve
	missing bool                  // at does not exist
	beside  bool                  // the target is in one of Root.Beside
	hidden  func(rel string) bool // Follow's parameter; nil for Resolve
}

func (w *walker) walk(text string) (Target, error) {
	system, err := w.push(text)
	for err == nil && system == "" && len(w.todo) > 0 {
		name := w.todo[0]
		w.todo = w.todo[1:]
		if w.steps--; w.steps < 0 {
			return Target{}, unix.ENAMETOOLONG
		}
		system, err = w.step(name)
	}
	if err != nil {
		return Target{}, err
	}
	if system != "" {
		return Target{Rel: system, System: true, Beside: w.beside}, nil
	}
	return Target{Rel: strings.Join(w.at, "/"), Missing: w.missing}, nil
}

// push prepends the components of a link's text to todo. If the text leads into
// a system directory, push returns that path and the resolution ends.
func (w *walker) push(text string) (system string, err error) {
	parts := components(text)
	if strings.HasPrefix(text, "/") {
		rest, inside := cutAlias(parts)
		if !inside {
			return w.system(append(parts, w.todo...))
		}
		w.at, w.missing, parts = nil, false, rest
	}
	w.todo = append(parts, w.todo...)
	return "", nil
}

// system accepts an absolute path below one of systemDirs or of Root.Shown. A path with ".." is
// an escape, because its target depends on links outside the scope.
func (w *walker) system(parts []string) (string, error) {
	path := strings.Join(parts, "/")
	in := func(dir string) bool {
		dir = strings.Trim(dir, "/")
		return path == dir || strings.HasPrefix(path, dir+"/")
	}
	_, dirs := w.root.beside()
	w.beside = slices.ContainsFunc(dirs, in)
	if slices.Contains(parts, "..") || !w.beside && !slices.ContainsFunc(slices.Concat(systemDirs, w.root.Shown), in) {
		return "", w.escape()
	}
	return "/" + path, nil
}

func (r *Root) beside() (place string, dirs []string) {
	if r.Beside == nil {
		return "", nil
	}
	return r.Beside()
}

// above resolves what is left after a ".." of the scope's root: it may lead to one of Root.Beside.
func (w *walker) above() (system string, err error) {
	place, _ := w.root.beside()
	at, up := components(place), 1
	for ; len(w.todo) > 0 && w.todo[0] == ".."; up++ {
		w.todo = w.todo[1:]
	}
	if system, err = w.system(append(at[:max(len(at)-up, 0)], w.todo...)); err == nil && !w.beside {
		err = w.escape()
	}
	return system, err
}

// step resolves one component.
func (w *walker) step(name string) (system string, err error) {
	if name == ".." {
		if len(w.at) == 0 {
			return w.above()
		}
		w.at = w.at[:len(w.at)-1]
		// The parent of a missing name may exist. The next component decides.
		w.missing = false
		return "", nil
	}
	dir := strings.Join(w.at, "/")
	if w.hidden != nil && w.hidden(Join(dir, name)) {
		w.missing = true
	}
	if !w.missing {
		text, err := w.root.linkText(dir, name)
		if err == nil {
			if w.links--; w.links < 0 {
				return "", unix.ELOOP
			}
			w.target, w.rule = text, RuleLink
			return w.push(text)
		}
		switch {
		case errors.Is(err, ErrEscape):
			return "", &Violation{Rel: w.rel, Target: w.target, Rule: RuleMount}
		case errors.Is(err, ErrStale), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENAMETOOLONG):
			w.missing = true
		case errors.Is(err, unix.EACCES) && w.hidden != nil:
			w.missing = true
		case err != errNoLink:
			return "", err
		}
	}
	w.at = append(w.at[:len(w.at):len(w.at)], name)
	return "", nil
}

func (w *walker) escape() error {
	return &Violation{Rel: w.rel, Target: w.target, Rule: w.rule}
}

var errNoLink = errors.New("not a symbolic link")

// linkText returns the text of the symbolic link name in dir, or errNoLink.
func (r *Root) linkText(dir, name string) (string, error) {
	if len(name) > 255 {
		return "", unix.ENAMETOOLONG
	}
	rel, there := Join(dir, name), true
	if r.Moved != nil {
		rel, there = r.Moved(rel)
	}
	if !there {
		return "", unix.ENOENT
	}
	f, err := r.Object(rel)
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !st.IsLink() {
		return "", errNoLink
	}
	return f.Readlink()
}

// cutAlias reports whether an absolute path leads below Alias, and returns the
// components after it.
func cutAlias(parts []string) (rest []string, ok bool) {
	if len(parts) > 0 && "/"+parts[0] == Alias {
		return parts[1:], true
	}
	return nil, false
}

// components returns the components of a path without "" and ".".
func components(path string) []string {
	var parts []string
	for part := range strings.SplitSeq(path, "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return parts
}

// Join joins the relative path of a directory and a name. The path of the root
// is "". Unlike path.Join it does not clean the result.
func Join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// Parent returns the path of the directory of a path. That of a name in the root, and of the root, is "".
func Parent(rel string) string { return rel[:max(strings.LastIndexByte(rel, '/'), 0)] }

// Base returns the last name of a path.
func Base(rel string) string { return rel[strings.LastIndexByte(rel, '/')+1:] }
