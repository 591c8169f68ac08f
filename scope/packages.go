package scope

import (
	"path"
	"strings"
)

// installed says what the names of a directory's path make of the names below it. Of two directories with equal
// values the same names below are in packages that a package manager has installed.
type installed uint8

// The bits of installed. The other ones say which names are missing.
const (
	inPackages installed = 1 << iota // below the directory everything is in packages
	inTarget                         // its name is target: package follows
	inVendor                         // likewise vendor: two names follow, those of Composer's packages
	inVendored                       // its parent's is vendor: one name follows
)

// installedIn returns the value of a directory. Names count as package managers write them: on a file system with
// case NODE_MODULES is another directory.
func installedIn(dir string) (at installed) {
	for name := range strings.SplitSeq(dir, "/") {
		at = at.enter(name)
	}
	return at
}

// enter returns the value of the directory name.
func (at installed) enter(name string) (below installed) {
	switch {
	case at&(inPackages|inVendored) != 0, name == "node_modules", name == "site-packages", name == "package" && at&inTarget != 0:
		return inPackages
	}
	if name == "target" {
		below |= inTarget
	}
	if name == "vendor" {
		below |= inVendor
	}
	if at&inVendor != 0 {
		below |= inVendored
	}
	return below
}

// packaged reports whether rel is a name in an installed package, and in no repository there.
func packaged(rel string) bool {
	dir, _ := path.Split(rel)
	return installedIn(strings.TrimSuffix(dir, "/")) == inPackages && !classifyGit(rel).inside
}

// leadsToPackages reports whether a link at rel to target, with that text, gives what is in packages a name outside of
// these: now, or when other directories and links are where its text leads.
func leadsToPackages(rel, text, target string) bool {
	own := installedIn(rel)
	if own == inPackages {
		return false
	}
	other := func(at installed) bool { return at != 0 && at != own }
	if other(installedIn(target)) {
		return true
	}
	dir, rest := path.Dir("/"+rel), text
	if strings.HasPrefix(text, "/") {
		dir, rest = "/", text[1:]
	}
	for name := range strings.SplitSeq(rest, "/") {
		if dir = path.Join(dir, name); installedIn(dir[1:]) == inPackages {
			return true
		}
	}
	return other(installedIn(dir[1:]))
}
