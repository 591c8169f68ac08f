package scope

import (
	"path"
	"slices"
	"strings"
	"unicode"
)

// GitRules protect what git executes for a user of the host who works in the scope: hooks,
// and programs that a repository's config names. They also keep git of the host from files
// outside of the scope.
//
// A repository is a directory that ends in ".git", as git and its users name them, and
// everything below it may be the directory of a submodule or a worktree, except branches.
// git takes a directory for a repository if it has HEAD, objects and refs, or a commondir
// that leads to the latter (is_git_directory in git's setup.c). So the rules let nobody
// make HEAD outside of a repository, objects among branches, or a commondir that is not
// the one of a worktree.
type GitRules struct {
	// Hooks protects hooks/: clients may make the directory, and files in it whose names
	// end in ".sample", which git does not execute.
	Hooks bool `json:"hooks,omitempty"`

	// Config lists the keys that clients may set in a repository's config, as for
	// [CheckGit]. Nil protects hooks alone. The view decides about a file with a
	// [GitContent] by the content, whether a client renames a file to it, as git does, or
	// writes it in place.
	Config []string `json:"config,omitempty"`

	// Bare says that the scope's directory is a repository itself, as the .git of a work tree elsewhere.
	Bare bool `json:"bare,omitempty"`
}

// path returns a path of the scope as classifyGit and CheckGit have it.
func (g *GitRules) path(rel string) string {
	if g != nil && g.Bare {
		return strings.TrimSuffix(".git/"+rel, "/")
	}
	return rel
}

// gitFile is what a path is to git.
type gitFile uint8

const (
	gitOther   gitFile = iota
	gitJudged          // has a GitContent
	gitLock            // becomes a judged file when git, of the view or of the host, renames it
	gitHooks           // the directory hooks
	gitHook            // a file in it
	gitRefused         // would make another directory a repository, or leads git elsewhere
	gitStaged          // a judged file that the view is about to put into place
)

// gitMay lists the operations that change a file of each kind and that clients may perform.
var gitMay = [...][]Op{
	gitJudged:  {OpCreate, OpOpenWrite, OpWrite, OpRename, OpUnlink, OpMkdir, OpRmdir, OpSetattr},
	gitLock:    {OpCreate, OpOpenWrite, OpWrite, OpUnlink, OpRmdir, OpRenameFrom, OpSetattr},
	gitHooks:   {OpMkdir, OpRmdir, OpSetattr},
	gitHook:    {},
	gitRefused: {OpUnlink, OpRmdir},
	gitStaged:  {},
}

// GitContent is a kind of git's files whose content decides whether it is written.
type GitContent uint8

// The kinds of content; the zero value is any other file.
const (
	GitConfig     GitContent = iota + 1
	GitIndex                 // see CheckGitIndex
	GitConflicts             // MERGE_RR: paths that git rerere reads and writes
	GitAlternates            // objects/info/alternates: directories of objects
	GitTables                // reftable/tables.list: names of files
	GitLink                  // ".git": the path of a repository
	GitWorktree              // worktrees/NAME/gitdir: the path of a GitLink
	GitCommon                // worktrees/NAME/commondir
)

// leads reports whether a kind of content makes a directory a repository, or leads to one.
func (c GitContent) leads() bool { return c == GitLink || c == GitWorktree || c == GitCommon }

// StagedGitFile is the name under which a view writes a judged file before it renames it
// into place. GitRules hide it from clients, who could keep it open.
const StagedGitFile = ".scopefs-config"

// gitPlace is the result of classifyGit.
type gitPlace struct {
	kind    gitFile
	content GitContent
	inside  bool // a repository, or in one
	module  bool // in .git/modules
	holder  int  // the number of directories that hold ".git", or down to the bare repository
}

// free is the number of ".." that a path may begin with where git resolves it in the work
// tree. The work tree may move up, as far as below the root, and no further.
func (p gitPlace) free() int {
	if p.module {
		return 0
	}
	return min(p.holder, 1)
}

// classifyGit returns what rel is to git. Names are compared as the file systems do that
// fold them.
func classifyGit(rel string) (at gitPlace) {
	branches := false
	var before, previous string // the two names before
	for start, depth := 0, 0; start < len(rel); depth++ {
		end, last := len(rel), true
		if i := strings.IndexByte(rel[start:], '/'); i >= 0 {
			end, last = start+i, false
		}
		exact := rel[start:end]
		name := foldGit(exact)
		start = end + 1
		if !at.inside {
			switch {
			case name == ".git":
				at = gitPlace{inside: true, holder: depth}
				if last {
					at.kind, at.content = gitJudged, GitLink
				}
			case strings.HasSuffix(name, ".git"):
				at = gitPlace{inside: true, holder: depth + 1}
			case name == StagedGitFile: // beside a .git file
				at.kind = gitStaged
				return at
			case last && exact == "HEAD":
				at.kind = gitRefused
			}
			before, previous = previous, name
			continue
		}
		at.module = at.module || previous == ".git" && name == "modules"
		branches = branches || previous == "logs" && name == "refs" ||
			previous == "refs" && slices.Contains(gitRefs, name)
		switch {
		case previous == "refs" && name == "objects": // it would make refs a repository with refs/remotes
			at.kind = gitRefused
			return at
		case branches:
			if name == "objects" || name == "commondir" || name == ".git" {
				at.kind = gitRefused
				return at
			}
		case name == "hooks" && last:
			at.kind = gitHooks
			return at
		case name == "hooks":
			if rest := rel[start:]; !strings.HasSuffix(rest, ".sample") || strings.Contains(rest, "/") {
				at.kind = gitHook
			}
			return at
		case name == StagedGitFile:
			at.kind = gitStaged
			return at
		case last:
			at.kind, at.content = gitEntry(before, previous, name)
		}
		before, previous = previous, name
	}
	return at
}

// gitRefs are the directories of refs whose names clients choose.
var gitRefs = []string{"heads", "tags", "remotes", "notes", "bisect", "worktree", "rewritten", "replace"}

// gitEntry returns what the file name in the directory before/previous of a repository is.
func gitEntry(before, previous, name string) (gitFile, GitContent) {
	lock, locked := strings.CutSuffix(name, ".lock")
	if locked {
		name = lock
	}
	content := GitContent(0)
	switch {
	case name == "config" || name == "config.worktree", name == "opts" && previous == "sequencer": // of cherry-pick and revert
		content = GitConfig
	case name == "index", strings.HasPrefix(name, "sharedindex."), strings.HasPrefix(name, "index.stash."):
		content = GitIndex
	case name == "merge_rr":
		content = GitConflicts
	case name == "alternates" && previous == "info":
		content = GitAlternates
	case name == "tables.list" && previous == "reftable":
		content = GitTables
	case strings.HasPrefix(name, "sharedindex_"), strings.HasPrefix(name, "next-index-"):
		return gitLock, 0
	case name == "gitdir" && before == "worktrees" && !locked:
		return gitJudged, GitWorktree
	case name == "commondir" && before == "worktrees" && !locked:
		return gitJudged, GitCommon
	case name == "commondir", name == ".git", previous == "remotes", previous == "branches",
		strings.HasPrefix(name, "multi-pack-index"): // it names packs by paths
		return gitRefused, 0
	default:
		return gitOther, 0
	}
	if locked {
		return gitLock, 0
	}
	return gitJudged, content
}

// foldGit returns the name in lower case and, if that is what a file system could take it
// for, ".git": see is_ntfs_dotgit and is_hfs_dotgit in git's path.c and utf8.c.
func foldGit(name string) string {
	odd := func(r rune) bool { return r > unicode.MaxASCII || r == ':' || r == '~' || r >= 'A' && r <= 'Z' }
	if !strings.ContainsFunc(name, odd) && strings.TrimRight(name, ". ") == name {
		return name
	}
	name, _, _ = strings.Cut(name, ":") // a stream of NTFS
	ignored := func(r rune) rune {      // by HFS+
		if r >= 0x200c && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x206a && r <= 0x206f || r == 0xfeff {
			return -1
		}
		return r
	}
	name = strings.TrimRight(strings.ToLower(strings.Map(ignored, name)), ". ")
	if name == "git~1" {
		return ".git"
	}
	return name
}

// file returns the decision about op on rel; ok is false if the rules do not restrict it.
func (g *GitRules) file(op Op, rel string) (d Decision, ok bool) {
	at := classifyGit(g.path(rel))
	if !g.restricts(at) {
		return d, false
	}
	d = Decision{Allow: !op.Mutates() || slices.Contains(gitMay[at.kind], op), Access: Read, Kind: KindProtect, Rule: "protect git-config"}
	switch at.kind {
	case gitHooks, gitHook:
		d.Rule = "protect git-hooks"
	case gitStaged:
		d.Allow, d.Hidden, d.Access = false, true, Hide
	case gitJudged:
		if op == OpCreate || op == OpOpenWrite || op == OpWrite || op == OpRename {
			d.Judge = at.content
		}
	case gitLock:
		d.Own = op == OpOpenWrite || op == OpUnlink || op == OpRenameFrom
	}
	return d, true
}

// restricts reports whether the rules are about a file.
func (g *GitRules) restricts(at gitPlace) bool {
	switch at.kind {
	case gitOther:
		return false
	case gitHooks, gitHook:
		return g.Hooks
	case gitRefused, gitStaged:
		return true
	}
	return g.Config != nil || at.content.leads()
}

// move returns the decision about moving the directory rel with all that is below it; ok
// is false if the rules do not restrict it. No directory moves into a repository, within
// one or out of one, and none becomes one.
func (g *GitRules) move(rel string) (d Decision, ok bool) {
	d = Decision{Access: Read, Kind: KindProtect, Rule: "protect git-config: a directory of a repository"}
	return d, g != nil && classifyGit(g.path(rel)).inside
}

// link returns the decision about a symbolic link at rel that leads to target; ok is false
// if the rules do not restrict it. A link into a repository would give its files names that
// the rules do not know. One out of it would lead elsewhere when directories there move. git of
// the host writes through links within a repository: a message, which clients may choose, to
// COMMIT_EDITMSG, and logs of branches, which clients name. git init makes one link, to a
// file "testing", to learn whether it can.
func (g *GitRules) link(rel, target string) (d Decision, ok bool) {
	d = Decision{Access: Read, Kind: KindProtect, Rule: "protect git-config: a link in a repository, or to one"}
	from, to := g != nil && classifyGit(g.path(rel)).inside, g != nil && classifyGit(g.path(target)).inside
	if from && to {
		return d, path.Dir(rel) != path.Dir(target) || path.Base(target) != "testing"
	}
	return d, from || to
}
