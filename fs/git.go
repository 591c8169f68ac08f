package fs

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/fs/judge"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// replaceJudged renames a file to a git file that has a scope.GitContent, if the policy
// accepts the content. It does not move the client's file, which clients may have open for
// writing. It replaces the target by a copy of the judged content and removes the client's
// name. The caller holds View.moves and View.alone.
func (v *View) replaceJudged(kind scope.GitContent, old *place, oldName string, new *place, newName string, flags uint) error {
	refuse := func(why error) error {
		return &unrecorded{gitDenial(new.path(), why.Error()), syscall.EACCES}
	}
	if flags&beneath.RenameExchange != 0 {
		return refuse(errors.New("an exchange"))
	}
	st, err := old.dir.Stat(oldName)
	if err != nil {
		return err
	}
	if !st.IsRegular() {
		return refuse(errors.New("no regular file"))
	}
	now, err := new.dir.Stat(newName)
	switch {
	case err == nil && flags&unix.RENAME_NOREPLACE != 0:
		return syscall.EEXIST
	case err == nil && now.IsDir():
		return syscall.EISDIR
	case err != nil && err != syscall.ENOENT:
		return err
	}
	staged, err := judge.Stage(kind, v.root, old.path(), &st, new.dir)
	if err != nil {
		return err
	}
	defer staged.Close()
	why, err := judge.Git(v.policy.Load(), kind, v.root, staged, new.path(), v.root, &now)
	if err == nil && why != nil {
		err = refuse(why)
	}
	if err == nil {
		err = v.replaceStaged(new, staged, &now)
	}
	if err != nil {
		_ = new.dir.Unlink(scope.StagedGitFile) // the next one removes it, too
		return err
	}
	if err := v.unlink(old, &st); err != nil {
		return err
	}
	v.locks.remove(st.ID())
	from, to := nameIn{old.node, oldName}, nameIn{new.node, newName}
	v.nodes.moved(st.ID(), from, to)
	// The kernel takes the client's file for the one at the new name.
	v.background.Go(func() {
		v.conn.InvalidateEntry(new.node.id, newName, false)
	})
	return nil
}

// pointer returns the kind of content of a file that git writes in place, or zero.
func (v *View) pointer(n *node) scope.GitContent {
	policy := v.policy.Load()
	if policy.Uniform() {
		return 0
	}
	rel, ok := v.nodes.newest(n)
	if !ok {
		return 0
	}
	return policy.File(scope.OpWrite, rel).Judge
}

// writePointer replaces the content of a pointer by the data of one request, if the policy
// accepts it. It refuses requests with a part of the content.
func (v *View) writePointer(head *fuse.InHeader, h *handle, offset int64, data [][]byte) error {
	text := bytes.Join(data, nil)
	rel, ok := v.nodes.newest(h.node)
	if !ok {
		return beneath.ErrStale
	}
	why := errors.New("not written in one piece")
	if offset == 0 {
		why = scope.CheckGit(h.pointer, rel, nil, nil, text)
	}
	if why != nil {
		a := request{head: head, op: scope.OpWrite}
		return v.refuse(&a, gitDenial(rel, why.Error()), syscall.EACCES)
	}
	v.locks.mu.Lock() // else a longer text of another request could remain behind this one
	defer v.locks.mu.Unlock()
	return judge.Overwrite(h.file, text)
}

// locks holds the ids of git's lock files that clients of the view created. The host's git
// renames its lock to the index or the config without a judgement, so clients may neither
// write nor remove that lock. The zero value is empty.
type locks struct {
	mu  sync.Mutex // also held while a pointer is written; nothing waits under it but the disk
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
