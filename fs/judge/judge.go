// Package judge decides about changes by content: where a link leads, and what a file of git says. The view calls it before a
// rename, and a commit of a branch before each path.
package judge

import (
	"cmp"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Permitted returns an error for a decision that denies.
func Permitted(d scope.Decision) error {
	if !d.Allow && d.Access != scope.Hide { // an agent's undo says it, too: that rule may have the name of a path that it hides
		return fmt.Errorf("%w: %s", scope.ErrDenied, cmp.Or(d.Rule, d.Access.String()))
	} else if !d.Allow {
		return scope.ErrDenied
	}
	return nil
}

// Undo returns an error if a policy does not let the agent change a path, with an object that has so many names. Held content is not
// written there. Rules for git let clients make .git/hooks and judged files without writing to them (OpMkdir), and hide the name of staged
// files from clients alone. What comes back at such a path is what was there before: no client has had it open for writing.
func Undo(p *scope.Policy, rel string, links uint64) error {
	switch {
	case p.Held(rel):
		return fmt.Errorf("%w: hold", scope.ErrDenied)
	case !p.File(scope.OpOpenWrite, rel).Allow && (p.File(scope.OpMkdir, rel).Allow || beneath.Base(rel) == scope.StagedGitFile):
		return nil
	}
	return Permitted(p.Linked(scope.OpOpenWrite, rel, links))
}

// Read returns an error if a policy does not let the agent read a path.
func Read(p *scope.Policy, rel string) error { return Permitted(p.File(scope.OpOpen, rel)) }

// Whole reports whether a policy judges the content of a path as a whole: what judges a change cannot judge a merge.
func Whole(p *scope.Policy, rel string) bool {
	return p.File(scope.OpOpenWrite, rel).Judge != 0 || p.File(scope.OpRename, rel).Judge != 0
}

// Take returns an error if a policy does not let the agent make of a path of base what the path is in its branch. The view
// has decided so before; the rules may be others now.
func Take(p *scope.Policy, base, branch *beneath.Root, rel string) error {
	st, err := branch.Stat(rel)
	switch {
	case errors.Is(err, beneath.ErrStale): // removed, or moved away
		op := scope.OpUnlink
		if was, err := base.Stat(rel); err == nil && was.IsDir() {
			op = scope.OpRmdir
		}
		return Permitted(p.File(op, rel))
	case err != nil:
		return err
	case st.IsDir():
		return Permitted(p.File(scope.OpMkdir, rel))
	case st.IsLink():
		return takeLink(p, branch, rel)
	}
	d := p.File(scope.OpOpenWrite, rel)
	if !d.Allow {
		d = p.File(scope.OpRename, rel) // of a file of git that is judged as a whole
	}
	if err := Permitted(d); err != nil || d.Judge == 0 {
		return err
	}
	return takeGit(p, d.Judge, base, branch, rel, &st)
}

func takeLink(p *scope.Policy, branch *beneath.Root, rel string) error {
	if err := Permitted(p.File(scope.OpSymlink, rel)); err != nil {
		return err
	}
	text, err := branch.Readlink(rel)
	if err != nil {
		return err
	}
	return Link(p, branch, rel, text)
}

// Link returns an error for a symbolic link of a branch that the view would not let the agent make: one that leads out, or to what the
// rules protect. The view judges links that are made and moved, but not those in a directory that moves.
func Link(p *scope.Policy, branch *beneath.Root, rel, text string) error {
	to, err := branch.Follow(beneath.Parent(rel), text, func(at string) bool { return p.File(scope.OpLookup, at).Hidden })
	if violation, ok := errors.AsType[*beneath.Violation](err); ok {
		return &beneath.Violation{Rel: rel, Rule: violation.Rule, Target: text}
	}
	switch {
	case err == unix.ELOOP: // no process can follow it
		return nil
	case err != nil:
		return err
	case to.System:
		return nil
	}
	return Permitted(p.Link(rel, text, to.Rel))
}

// takeGit judges the content of a file of git as the view does.
func takeGit(p *scope.Policy, kind scope.GitContent, base, branch *beneath.Root, rel string, st *beneath.Stat) error {
	if !st.IsRegular() {
		return scope.ErrDenied
	}
	f, err := branch.Open(rel, unix.O_RDONLY, st.ID())
	if err != nil {
		return err
	}
	defer f.Close()
	was, err := base.Stat(rel)
	if err != nil {
		was = beneath.Stat{}
	}
	why, err := Git(p, kind, branch, f, rel, base, &was)
	return errors.Join(err, why)
}
