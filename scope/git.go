package scope

import "strings"

// GitRules protect what git executes for a user of the host who works in the scope: hooks,
// and programs that a repository's config names.
//
// A repository is a directory that ends in ".git", as git and its users name them. What is
// below its own refs and logs are names of branches, and everything else may be the
// directory of a submodule or a worktree, whatever their names. A ".git" that is no
// directory leads to a repository anywhere, so nobody makes one. git takes a
// directory for a repository if it has HEAD, objects and refs, or a commondir that leads to
// the latter (is_git_directory in git's setup.c). So the rules let nobody make HEAD
// outside of a repository, objects below refs, or commondir.
type GitRules struct {
	// Hooks protects hooks/: clients may make the directory, and files in it whose names
	// end in ".sample", which git does not execute.
	Hooks bool `json:"hooks,omitempty"`

	// Config lists the keys that clients may set in a repository's config, as for
	// [CheckGitConfig]. Nil does not protect it. A config and an index are written by
	// renaming a file to it, as git does; the view then decides by the content.
	Config []string `json:"config,omitempty"`
}

// gitFile is what a path is to git.
type gitFile uint8

const (
	gitOther  gitFile = iota
	gitConfig         // config or config.worktree of a repository
	gitIndex          // index of a repository
	gitRemote         // a file that names a remote, as git did before its config
	gitHooks          // the directory hooks
	gitHook           // a file in it
	gitMaker          // would make another directory a repository, or part of one
	gitStaged         // a config or an index that the view is about to put into place
	gitDir            // ".git": a repository, or a file that leads to one
)

// GitContent is a kind of git's files whose content decides whether a file is renamed to it.
type GitContent uint8

// The kinds of content; the zero value is any other file.
const (
	GitConfigContent GitContent = iota + 1 // see CheckGitConfig
	GitIndexContent                        // see CheckGitIndex
)

// StagedGitFile is the name under which a view writes a config or an index before it
// renames it into place. Rules with GitRules.Config hide it from clients, who could keep it
// open.
const StagedGitFile = ".scopefs-config"

// classify returns what rel is to git, and whether it is a repository or in one.
func (g *GitRules) classify(rel string) (kind gitFile, inside bool) {
	branches, top := false, false // top: the component before is the repository itself
	exact := false                // below a ".git", where nothing belongs to a work tree
	remotes := false              // the component before is a directory of remotes
	for start := 0; start < len(rel); {
		end, last := len(rel), true
		if i := strings.IndexByte(rel[start:], '/'); i >= 0 {
			end, last = start+i, false
		}
		name := rel[start:end]
		start = end + 1
		if name == ".git" && last {
			return gitDir, true
		}
		if !inside {
			exact = name == ".git"
			if inside = strings.HasSuffix(name, ".git"); !inside && last && name == "HEAD" {
				return gitMaker, false
			}
			top = inside
			continue
		}
		first, remote := top, remotes
		top, exact = false, exact || name == ".git"
		remotes = (first || exact) && (name == "remotes" || name == "branches")
		switch {
		case name == "commondir" && last, name == "objects" && branches:
			return gitMaker, true
		case branches:
		case first && (name == "refs" || name == "logs"):
			branches = true
		case name == "hooks" && g.Hooks && last:
			return gitHooks, true
		case name == "hooks" && g.Hooks:
			if rest := rel[start:]; strings.HasSuffix(rest, ".sample") && !strings.Contains(rest, "/") {
				return gitOther, true
			}
			return gitHook, true
		case (name == "config" || name == "config.worktree") && g.Config != nil && last:
			return gitConfig, true
		case name == "index" && (first || exact) && g.Config != nil && last:
			return gitIndex, true
		case remote && g.Config != nil && last:
			return gitRemote, true
		case name == StagedGitFile && g.Config != nil:
			return gitStaged, true
		}
	}
	return gitOther, inside
}

// file returns the decision about op on rel; ok is false if the rules do not restrict it.
func (g *GitRules) file(op Op, rel string) (d Decision, ok bool) {
	kind, _ := g.classify(rel)
	d = Decision{Allow: !op.Mutates(), Access: Read, Kind: KindProtect, Rule: "protect git-config"}
	switch kind {
	case gitOther:
		return d, false
	case gitStaged:
		return Decision{Access: Hide, Hidden: true, Kind: KindProtect, Rule: d.Rule}, true
	case gitConfig, gitIndex:
		if op == OpRename {
			d.Judge = map[gitFile]GitContent{gitConfig: GitConfigContent, gitIndex: GitIndexContent}[kind]
		}
		d.Allow = d.Allow || op == OpRename || op == OpUnlink || op == OpMkdir || op == OpRmdir || op == OpSetattr
	case gitDir, gitRemote:
		d.Allow = d.Allow || op == OpMkdir || op == OpRmdir || op == OpUnlink || op == OpSetattr
	case gitHooks:
		d.Allow = d.Allow || op == OpMkdir || op == OpRmdir || op == OpSetattr
		d.Rule = "protect git-hooks"
	case gitHook:
		d.Rule = "protect git-hooks"
	case gitMaker:
		d.Allow = d.Allow || op == OpUnlink || op == OpRmdir
	}
	return d, true
}

// move returns the decision about moving the directory rel with all that is below it; ok
// is false if the rules do not restrict it. No directory moves into a repository, within
// one or out of one, and none becomes one.
func (g *GitRules) move(rel string) (d Decision, ok bool) {
	if _, inside := g.classify(rel); !inside {
		return d, false
	}
	return Decision{Access: Read, Kind: KindProtect, Rule: "protect git-config: a directory of a repository"}, true
}

// link returns the decision about a symbolic link at rel that leads to target; ok is false
// if the rules do not restrict it. A link from elsewhere into a repository would give its
// files names that the rules do not know.
func (g *GitRules) link(rel, target string) (d Decision, ok bool) {
	_, from := g.classify(rel)
	if _, to := g.classify(target); from || !to {
		return d, false
	}
	return Decision{Access: Read, Kind: KindProtect, Rule: "protect git-config: a link into a repository"}, true
}
