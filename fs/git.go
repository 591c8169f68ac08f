package fs

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
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
	limit := int64(scope.MaxGitText)
	if kind == scope.GitIndex {
		limit = scope.MaxGitIndex
	}
	staged, err := v.stage(old.path(), &st, new.dir, limit)
	if err != nil {
		return err
	}
	defer staged.Close()
	var why error
	if kind == scope.GitIndex {
		why, err = checkIndex(v.root, staged, new.base)
	} else {
		why, err = v.checkText(kind, staged, new.path(), &now)
	}
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

// checkText returns why a staged file must not replace the file with the attributes now; zero
// attributes stand for no file.
func (v *View) checkText(kind scope.GitContent, staged beneath.File, rel string, now *beneath.Stat) (why, err error) {
	text, err := allOf(staged, scope.MaxGitText+1)
	if err != nil {
		return nil, err
	}
	var before []byte
	if now.IsRegular() {
		if before, err = v.content(rel, now); err != nil {
			return nil, err
		}
	}
	return scope.CheckGit(kind, rel, v.policy.Load().GitConfig(), before, text), nil
}

// checkIndex returns why a staged file must not be the index of the repository at base.
// Without sha256 in a config there, git reads an index with SHA-1; clients cannot set it.
func checkIndex(root *beneath.Root, staged beneath.File, base string) (why, err error) {
	for dir := base; ; dir = parentOf(dir) {
		f, err := root.Object(beneath.Join(dir, "config"))
		if err == nil {
			st, failed := f.Stat()
			f.Close()
			if failed != nil {
				return nil, failed
			}
			if st.IsRegular() {
				text, err := contentOf(root, beneath.Join(dir, "config"), &st)
				if err != nil {
					return nil, err
				}
				if bytes.Contains(bytes.ToLower(text), []byte("sha256")) {
					return errors.New("an index with SHA-256, which the view does not read"), nil
				}
			}
		}
		if dir == "" {
			break
		}
	}
	st, err := staged.Stat()
	if err != nil {
		return nil, err
	}
	return scope.CheckGitIndex(readerAt{staged}, int64(st.Size)), nil
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
	if err := h.file.Truncate(0); err != nil {
		return err
	}
	_, err := writerAt{h.file}.WriteAt(text, 0)
	return err
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
func gitDenial(rel, why string) audit.Event {
	return audit.Event{Path: rel, Verdict: audit.Deny, Rule: "protect git-config: " + why, RuleKind: string(scope.KindProtect)}
}

// content reads a regular file that has the attributes st, up to the limit of a config
// and a byte more.
func (v *View) content(rel string, st *beneath.Stat) ([]byte, error) {
	return contentOf(v.root, rel, st)
}

func contentOf(root *beneath.Root, rel string, st *beneath.Stat) ([]byte, error) {
	f, err := root.Open(rel, unix.O_RDONLY, st.ID())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return allOf(f, scope.MaxGitText+1)
}

// allOf reads a file, up to a limit.
func allOf(f beneath.File, limit int64) ([]byte, error) {
	return io.ReadAll(io.NewSectionReader(readerAt{f}, 0, limit))
}

// stage copies a file that has the attributes st, up to a limit and a byte more, to a name
// that the policy hides. The copy has the file's times: git compares those of an index with
// the times of files.
func (v *View) stage(rel string, st *beneath.Stat, dir beneath.Dir, limit int64) (beneath.File, error) {
	if err := dir.Unlink(scope.StagedGitFile); err != nil && err != syscall.ENOENT { // of a view that was killed
		return beneath.File{}, err
	}
	from, err := v.root.Open(rel, unix.O_RDONLY, st.ID())
	if err != nil {
		return beneath.File{}, err
	}
	defer from.Close()
	to, err := dir.Create(scope.StagedGitFile, unix.O_RDWR, uint32(st.Mode)&0o777)
	if err != nil {
		return to, err
	}
	if err = copyAll(to, from, limit+1); err == nil {
		err = to.Utimes(timespec(st.Atime), timespec(st.Mtime))
	}
	if err != nil {
		to.Close()
		_ = dir.Unlink(scope.StagedGitFile) // the next one removes it, too
	}
	return to, err
}

func copyAll(to, from beneath.File, limit int64) error {
	_, err := io.Copy(io.NewOffsetWriter(writerAt{to}, 0), io.NewSectionReader(readerAt{from}, 0, limit))
	return err
}

func timespec(t unix.StatxTimestamp) unix.Timespec {
	return unix.Timespec{Sec: t.Sec, Nsec: int64(t.Nsec)}
}

// readerAt is an io.ReaderAt.
type readerAt struct{ beneath.File }

func (r readerAt) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.File.ReadAt(p, off)
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

// writerAt is an io.WriterAt.
type writerAt struct{ beneath.File }

func (w writerAt) WriteAt(p []byte, off int64) (n int, err error) {
	for n < len(p) && err == nil {
		var more int
		more, err = w.File.WriteAt(p[n:], off+int64(n), false)
		n += more
	}
	return n, err
}
