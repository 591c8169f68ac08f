package fs

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// MayTake returns an error if a policy does not let the agent make of a path of base what the path is in its branch. The view
// has decided so before; the rules may be others now.
func MayTake(p *scope.Policy, base, branch *beneath.Root, rel string) error {
	st, err := branch.Stat(rel)
	switch {
	case errors.Is(err, beneath.ErrStale): // removed, or moved away
		op := scope.OpUnlink
		if was, err := base.Stat(rel); err == nil && was.IsDir() {
			op = scope.OpRmdir
		}
		return permitted(p.File(op, rel))
	case err != nil:
		return err
	case st.IsDir():
		return permitted(p.File(scope.OpMkdir, rel))
	case st.IsLink():
		return mayTakeLink(p, branch, rel)
	}
	d := p.File(scope.OpOpenWrite, rel)
	if !d.Allow {
		d = p.File(scope.OpRename, rel) // of a file of git that is judged as a whole
	}
	if err := permitted(d); err != nil || d.Judge == 0 {
		return err
	}
	return judgeTaken(p, d.Judge, base, branch, rel, &st)
}

// Judged reports whether a policy judges the content of a path as a whole: what judges a change cannot judge a merge.
func Judged(p *scope.Policy, rel string) bool {
	return p.File(scope.OpOpenWrite, rel).Judge != 0 || p.File(scope.OpRename, rel).Judge != 0
}

// mayTakeLink returns an error also for a link to what the rules protect.
func mayTakeLink(p *scope.Policy, branch *beneath.Root, rel string) error {
	if err := permitted(p.File(scope.OpSymlink, rel)); err != nil {
		return err
	}
	f, err := branch.Object(rel)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := f.Readlink()
	if err != nil {
		return err
	}
	to, err := branch.Follow(parentOf(rel), text, nil)
	if err != nil || to.System { // as for a link of the host, which may lead out
		return nil
	}
	return permitted(p.Link(rel, to.Rel))
}

// judgeTaken judges the content of a file of git as View.replaceJudged does.
func judgeTaken(p *scope.Policy, kind scope.GitContent, base, branch *beneath.Root, rel string, st *beneath.Stat) error {
	if !st.IsRegular() {
		return scope.ErrDenied
	}
	f, err := branch.Open(rel, unix.O_RDONLY, st.ID())
	if err != nil {
		return err
	}
	defer f.Close()
	var why error
	if kind == scope.GitIndex {
		why, err = checkIndex(branch, f, parentOf(rel))
	} else {
		var text, before []byte
		text, err = allOf(f, scope.MaxGitText+1)
		if was, failed := base.Stat(rel); err == nil && failed == nil && was.IsRegular() {
			before, err = contentOf(base, rel, &was)
		}
		why = scope.CheckGit(kind, rel, p.GitConfig(), before, text)
	}
	return errors.Join(err, why)
}
