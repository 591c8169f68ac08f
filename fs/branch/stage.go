package branch

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// maxSyncs bounds the objects that are synced one by one. With more, one syncfs(2) is faster.
const maxSyncs = 16

// stageAll copies the new objects of the entries to the stage, durably, and returns what they are. It leaves the
// entries that cannot be copied. With hashed it copies those that are left, too.
func (b *Branch) stageAll(ctx context.Context, entries []Entry, left []bool, hashed bool) ([]ident, error) {
	stage, err := b.State.Dir(stageName)
	if err != nil {
		return nil, err
	}
	defer stage.Close()
	s := &stager{Branch: b, stage: stage, links: map[uint64]string{}}
	staged := make([]ident, len(entries))
	for i := range entries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		e := &entries[i]
		if e.new.IsDir() && e.Kind == history.Added || e.Mode && !e.copied() {
			e.attr = plan.AttributesOf(b.Merged, e.Path, &e.new, true)
		}
		if !e.copied() || left[i] && !hashed {
			continue
		}
		err := s.copy(e, stagedName(i))
		if err == nil {
			var st beneath.Stat
			st, err = stage.Stat(stagedName(i))
			staged[i] = stagedIdent(&st)
		}
		if err == nil && !e.new.IsDir() { // a client may have changed it since it was listed
			e.NewMode, e.NewSize = uint32(e.new.Mode)&0o7777, int64(e.new.Size)
			if e.new.IsLink() {
				e.Link, err = readlink(b.State, stagePath(stagedName(i)))
			}
		}
		if err == nil && e.Merge == Merged {
			staged[i], err = s.merge(e, i)
			left[i] = staged[i].Ino == 0
		}
		if fatal(err) {
			return nil, err
		}
		if err != nil {
			e.Conflict, e.fixed, left[i], staged[i] = whyCannot+err.Error(), true, true, ident{}
		}
	}
	if s.count == 0 {
		return staged, nil
	}
	if s.count > maxSyncs {
		err = b.lock.SyncFS()
	} else {
		err = stage.Sync()
	}
	return staged, err
}

// stagedIdent is the ident of an object of the stage: its change time changes with its other names.
func stagedIdent(st *beneath.Stat) ident {
	i := plan.IdentOf(st)
	i.Ctime = unix.StatxTimestamp{}
	return i
}

// fatal reports whether no other entry would fare better.
func fatal(err error) bool {
	for _, e := range []error{plan.ErrStuck, unix.EIO, unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.ENFILE, unix.EMFILE, unix.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// stager copies objects of the branch to the stage.
type stager struct {
	*Branch
	stage beneath.Dir
	links map[uint64]string // names of files that have several
	count int
}

func (s *stager) copy(e *Entry, name string) error {
	if e.new.IsDir() { // its attributes are set when it is full
		s.count++
		return s.stage.Mkdir(name, 0o700)
	}
	if other := s.links[e.new.Ino]; other != "" {
		return s.stage.Link(other, s.stage, name)
	}
	if e.new.Nlink > 1 {
		s.links[e.new.Ino] = name
	}
	s.count++
	to := plan.Target{Root: s.State, Dir: s.stage, Rel: stagePath(name), Sync: s.count <= maxSyncs, Lift: true}
	return to.Copy(s.Merged, e.Path, &e.new)
}
