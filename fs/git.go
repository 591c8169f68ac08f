package fs

import (
	"errors"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/fs/judge"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// renameJudged renames a file to a git file that has a scope.GitContent, if the policy
// accepts the content. It does not move the client's file, which clients may have open for
// writing. It replaces the target by a copy of the judged content and removes the client's
// name. The caller holds View.moves and View.alone.
func (v *View) renameJudged(kind scope.GitContent, old *place, oldName string, new *place, newName string, flags uint) error {
	if flags&beneath.RenameExchange != 0 {
		return notJudged(new.path(), errors.New("an exchange"))
	}
	st, err := v.stat(old)
	if err != nil {
		return err
	}
	if !st.IsRegular() {
		return notJudged(new.path(), errors.New("no regular file"))
	}
	now, err := v.stat(new)
	switch {
	case err == nil && flags&unix.RENAME_NOREPLACE != 0:
		return syscall.EEXIST
	case err == nil && now.IsDir():
		return syscall.EISDIR
	case err != nil && err != syscall.ENOENT:
		return err
	}
	from, err := v.root.Open(old.path(), unix.O_RDONLY, st.ID())
	if err != nil {
		return err
	}
	defer from.Close()
	if _, err := v.replaceJudged(kind, from, &st, new, &now, false); err != nil {
		return err
	}
	if err := v.unlink(old, &st); err != nil {
		return err
	}
	v.locks.remove(st.ID())
	at, to := nameIn{old.node, oldName}, nameIn{new.node, newName}
	v.nodes.moved(st.ID(), at, to)
	// The kernel takes the client's file for the one at the new name.
	v.background.Go(func() {
		v.conn.InvalidateEntry(new.node.id, newName, false)
	})
	return nil
}

// replaceJudged gives a copy of a text the name of a place, if the policy accepts the text, and returns the attributes
// of the copy. st are the attributes of from, which has the text; now those of the file that has the name: zero if there
// is none. Nobody else has the copy open. The caller holds View.moves and View.alone.
func (v *View) replaceJudged(
	kind scope.GitContent, from beneath.File, st *beneath.Stat, at *place, now *beneath.Stat, sync bool,
) (own beneath.Stat, err error) {
	copied, err := judge.Stage(kind, from, st, at.dir)
	if err != nil {
		return own, err
	}
	defer copied.Close()
	defer func() {
		if err != nil {
			_ = at.dir.Unlink(scope.StagedGitFile) // the next one removes it, too
		}
	}()
	why, err := judge.Git(v.policy.Load(), kind, v.root, copied, at.path(), v.root, now)
	switch {
	case err != nil:
		return own, err
	case why != nil:
		return own, notJudged(at.path(), why)
	}
	if sync {
		if err := copied.Sync(false); err != nil {
			return own, err
		}
	}
	if own, err = copied.Stat(); err == nil {
		err = v.replaceStaged(at, &own, now)
	}
	if err == nil && sync {
		err = at.dir.Sync()
	}
	return own, err
}

// notJudged returns the denial of a text that the judge refuses.
func notJudged(rel string, why error) error {
	return &unrecorded{gitDenial(rel, why.Error()), syscall.EACCES}
}

// locks holds the ids of git's lock files that clients of the view created. The host's git
// renames its lock to the index or the config without a judgement, so clients may neither
// write nor remove that lock. The zero value is empty.
type locks struct {
	mu  sync.Mutex // nothing waits under it
	ids []beneath.FileID
}

// maxLocks bounds the ids of locks. Clients cannot remove a lock whose id was evicted.
const maxLocks = 1024

func (l *locks) add(id beneath.FileID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ids) == maxLocks {
		l.ids = l.ids[1:]
	}
	l.ids = append(l.ids, id)
}

func (l *locks) remove(id beneath.FileID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.ids, id); i >= 0 {
		l.ids = slices.Delete(l.ids, i, i+1)
	}
}

// foreign reports whether a lock file of git was not created through the view.
func (v *View) foreign(op scope.Op, rel string, id beneath.FileID) bool {
	if policy := v.policy.Load(); policy.Uniform() || !policy.File(op, rel).Own {
		return false
	}
	v.locks.mu.Lock()
	defer v.locks.mu.Unlock()
	return !slices.Contains(v.locks.ids, id)
}

// notOwn returns the denial of an operation that is foreign.
func notOwn(rel string) error {
	return &unrecorded{gitDenial(rel, "a lock of another program"), syscall.EACCES}
}

// gitDenial returns the event of a denial by the rules for git's files.
func gitDenial(rel, why string) event.Event {
	return event.Event{Path: rel, Verdict: event.Deny, Rule: "protect git-config: " + why, RuleKind: string(scope.KindProtect)}
}
