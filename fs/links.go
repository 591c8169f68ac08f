package fs

import (
	"errors"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Symlink creates a link, unless it would lead out of the scope.
func (v *View) Symlink(_ <-chan struct{}, head *fuse.InHeader, text, name string, out *fuse.EntryOut) fuse.Status {
	a := request{head: head, op: scope.OpSymlink, name: name}
	return status(v.in(a, func(p *place) error {
		if err := v.roomy(); err != nil {
			return err
		}
		unlock, err := v.fixed(p, true) // a rename of the name judges the link that it moves
		if err != nil {
			return err
		}
		err = v.judgeNew(p.path(), text)
		if err == nil {
			err = v.make(p, func() (beneath.Stat, error) { return p.made(p.dir.Symlink(text, name), syscall.S_IFLNK, text) })
		}
		if unlock(); err != nil {
			return err
		}
		return v.entry(p, true, out)
	}))
}

// judgeNew is judge for a link that is made or moved to rel. It also fails if the link would
// lead to what the policy protects from the host's own programs: these follow it.
func (v *View) judgeNew(rel, text string) error { return v.judgeIn(v.root, rel, text) }

// judgeIn is judgeNew in a tree.
func (v *View) judgeIn(root *beneath.Root, rel, text string) error {
	to, err := v.leads(root, rel, text)
	if err == nil && to.Beside { // the rules there are another view's
		err = &beneath.Violation{Rel: rel, Target: text, Rule: beneath.RuleLink}
	}
	if err != nil || to.System {
		return err
	}
	if d := v.policy.Load().Link(rel, text, to.Rel); !d.Allow {
		return &unrecorded{event.Event{Path: rel, Target: text, Verdict: event.Deny, Rule: d.Rule, RuleKind: string(d.Kind)}, syscall.EACCES}
	}
	return nil
}

// judgeMoved is judgeNew for an object that moves, if it is a link. The caller holds
// View.moves.
func (v *View) judgeMoved(st *beneath.Stat, from, to string) error {
	if !st.IsLink() {
		return nil
	}
	text, err := v.root.Readlink(from)
	if err != nil {
		return err
	}
	err = v.judgeNew(to, text)
	if beneath.Parent(from) == beneath.Parent(to) && isViolation(err) && !v.policy.Load().Repository(to) {
		return nil // the host has made it, and it leads where it did
	}
	return err
}

func isViolation(err error) bool {
	_, ok := errors.AsType[*beneath.Violation](err)
	return ok
}

// judge returns what a link at rel leads to. It fails with a *beneath.Violation if that is
// out of the scope. It accepts a link with too many links on its way (ELOOP): no process
// can follow it. What the policy hides counts as missing, so that the result does not
// reveal it.
func (v *View) judge(rel, text string) (beneath.Target, error) { return v.leads(v.root, rel, text) }

// leads is judge in a tree.
func (v *View) leads(root *beneath.Root, rel, text string) (beneath.Target, error) {
	policy := v.policy.Load()
	to, err := root.Follow(beneath.Parent(rel), text, func(at string) bool { return policy.File(scope.OpLookup, at).Hidden })
	var violation *beneath.Violation
	if errors.As(err, &violation) {
		violation.Target = text
	}
	if err == syscall.ELOOP {
		err = nil
	}
	return to, err
}

// Link creates a hard link. The policy must grant write access at both names: no link
// makes a protected file reachable from a place that is not.
func (v *View) Link(_ <-chan struct{}, in *fuse.LinkIn, newName string, out *fuse.EntryOut) fuse.Status {
	from := request{head: &in.InHeader, op: scope.OpLinkFrom, node: in.Oldnodeid}
	return status(v.on(from, func(old *place) error {
		to := request{head: &in.InHeader, op: scope.OpLink, name: newName, nested: true}
		return v.in(to, func(new *place) error {
			if err := v.link(old, new, newName); err != nil {
				return err
			}
			return v.entry(new, false, out)
		})
	}))
}

func (v *View) link(old, new *place, newName string) error {
	unlock, err := v.still(new, old.stat.IsLink()) // as in Symlink
	if err != nil {
		return err
	}
	defer unlock()
	if most := v.opt.Limits.Links; most > 0 && !old.stat.IsDir() && int64(old.stat.Nlink) >= int64(most) {
		return syscall.EMLINK
	}
	if old.stat.IsLink() { // the same relative text leads elsewhere from another directory
		text, err := old.obj.Readlink()
		if err == nil {
			err = v.judgeNew(new.path(), text)
		}
		if err != nil {
			return err
		}
	}
	if own := old.own || old.held && v.held(old.rel); own != new.own {
		return syscall.EXDEV
	}
	dir, base, err := v.named(old)
	var st beneath.Stat
	if err == nil {
		defer dir.Close()
		st, err = dir.Stat(base)
	}
	if err == nil && st.ID() == old.node.ident() {
		do := func() error { return dir.Link(base, new.dir, newName) }
		link := func(at history.Place) error { return new.keep.Link(old.rel, at, st.ID(), do) }
		if new.own {
			return v.hold.Make(nameOf(new), link)
		}
		return link(v.at(new))
	}
	if !old.held {
		return beneath.ErrStale // the host has moved it since
	}
	link := func(at history.Place) error {
		return new.keep.Link("", at, old.node.ident(), func() error {
			return v.unnamed(func() error { return old.obj.LinkTo(new.dir, newName) })
		})
	}
	if new.own {
		return v.hold.Make(nameOf(new), link)
	}
	return link(v.at(new))
}

// Readlink returns the text of a link, if it leads to a place inside from every known
// name of the link.
func (v *View) Readlink(_ <-chan struct{}, head *fuse.InHeader) (text []byte, code fuse.Status) {
	code = status(v.on(request{head: head, op: scope.OpReadlink}, func(p *place) error {
		s, err := p.obj.Readlink()
		if err != nil {
			return err
		}
		for _, rel := range v.nodes.parents(p.node) {
			if _, err := v.judge(rel, s); err != nil {
				return err
			}
		}
		text = []byte(s)
		return nil
	}))
	return text, code
}
