package beneath

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is the kernel's limit of links in one walk (MAXSYMLINKS). A chain
// that is longer leads nowhere for anyone: path_resolution(7).
const maxLinks = 40

// maxSteps bounds the components of one walk, so that reading a link costs little
// whatever an agent has made it of. The kernel would walk further.
const maxSteps = 1000

// systemDirs are the read-only directories that the sandbox shows beside the
// view. Links into them are made by ordinary programs (python3 -m venv) and
// reach nothing that the agent could not name itself.
var systemDirs = []string{
	"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc/alternatives",
}

// Target is where a path leads when every link on it is followed.
type Target struct {
	Rel     string // relative to the scope; for System the absolute path
	System  bool   // leads into a read-only system directory of the sandbox
	Missing bool   // nothing stands there; judged by its nearest existing ancestor
}

// Resolve says where following rel to its end leads. It fails with a
// *Violation when that is outside the scope, with ELOOP when the way has more
// than 40 links, and with ENAMETOOLONG when it has more than 1000 components.
//
// The answer is a judgement of this moment, for the log and for refusing links
// that lead out. Nothing is ever opened by it.
func (r *Root) Resolve(rel string) (Target, error) {
	w := r.walker("", rel)
	w.rule = RulePath
	return w.walk(rel)
}

// Follow says where a link with the given text leads that stands in directory
// dir. It walks in user space because it must also judge what openat2(2) would
// refuse to walk: absolute links to the alias, dangling links, links that will
// only be made. Every step starts at the root descriptor.
//
// What hidden reports (nil: nothing), and what the caller may not search, counts
// as missing: the answer must not depend on what stands there.
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
	rel     string                // what was asked, for the violation
	target  string                // where it leads, as far as known
	rule    Rule                  // that stops it when it leads outside
	at      []string              // where the walk stands
	todo    []string              // what is left to walk
	links   int                   // how many links may still be followed
	steps   int                   // how many components may still be walked
	missing bool                  // at does not exist
	hidden  func(rel string) bool // of Follow: what counts as missing
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
		return Target{Rel: system, System: true}, nil
	}
	return Target{Rel: strings.Join(w.at, "/"), Missing: w.missing}, nil
}

// push puts the components of a link's text before what is left to walk. A
// text that leads into a system directory ends the walk; it is returned.
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

// system accepts an absolute path below one of systemDirs. One with ".." is an
// escape: where it goes depends on links that are not ours.
func (w *walker) system(parts []string) (string, error) {
	path := strings.Join(parts, "/")
	for _, dir := range systemDirs {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			for _, p := range parts {
				if p == ".." {
					return "", w.escape()
				}
			}
			return "/" + path, nil
		}
	}
	return "", w.escape()
}

// step walks one component.
func (w *walker) step(name string) (system string, err error) {
	if name == ".." {
		if len(w.at) == 0 {
			return "", w.escape()
		}
		w.at = w.at[:len(w.at)-1]
		// What stands above something missing may exist again; the next name tells.
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

// linkText returns the text of the link name in dir, or errNoLink.
func (r *Root) linkText(dir, name string) (string, error) {
	if len(name) > 255 {
		return "", unix.ENAMETOOLONG
	}
	f, err := r.Object(Join(dir, name))
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

// cutAlias reports whether the components of an absolute path lead below
// Alias, and returns the rest.
func cutAlias(parts []string) (rest []string, ok bool) {
	if len(parts) > 0 && "/"+parts[0] == Alias {
		return parts[1:], true
	}
	return nil, false
}

// components returns the components of a path without empty ones and ".".
func components(path string) []string {
	var parts []string
	for part := range strings.SplitSeq(path, "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return parts
}

// Join joins the rel of a directory and a name in it. The rel of the root is "".
// Unlike path.Join it cleans nothing.
func Join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}
