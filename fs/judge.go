package fs

import (
	"bytes"
	"errors"
	"io"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// replaceJudged performs the rename of a file to the config or the index of a git
// repository, if its content may be there. The file itself never is: clients may have it
// open, and would write to it afterwards. A new file with the content that was judged takes
// the place, and the client's file loses its name. The caller holds View.moves and
// View.alone.
func (v *View) replaceJudged(kind scope.GitContent, old *place, oldName string, new *place, newName string, flags uint) error {
	refuse := func(why error) error {
		return &unrecorded{audit.Event{Path: new.path(), Verdict: audit.Deny, Rule: "protect git-config: " + why.Error(), RuleKind: string(scope.KindProtect)}, syscall.EACCES}
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
	staged, err := v.stage(old.path(), &st, new.dir, map[scope.GitContent]int64{scope.GitConfigContent: scope.MaxGitConfig, scope.GitIndexContent: scope.MaxGitIndex}[kind])
	if err != nil {
		return err
	}
	defer staged.Close()
	var why error
	if kind == scope.GitIndexContent {
		why, err = v.checkIndex(staged, new.base)
	} else {
		why, err = v.checkConfig(staged, new.path(), &now)
	}
	if err == nil && why != nil {
		err = refuse(why)
	}
	if err == nil {
		err = new.dir.Rename(scope.StagedGitFile, new.dir, newName, 0)
	}
	if err != nil {
		_ = new.dir.Unlink(scope.StagedGitFile) // the next one removes it, too
		return err
	}
	if err := old.dir.Unlink(oldName); err != nil {
		return err
	}
	from, to := nameIn{old.node, oldName}, nameIn{new.node, newName}
	v.nodes.moved(st.ID(), from, to)
	// The kernel takes the client's file for the one at the new name.
	v.background.Go(func() {
		v.conn.InvalidateEntry(new.node.id, newName, false)
	})
	return nil
}

// checkConfig returns why a staged file must not replace the config that has the attributes
// now; it is not there if they are zero.
func (v *View) checkConfig(staged beneath.File, rel string, now *beneath.Stat) (why, err error) {
	text, err := allOf(staged, scope.MaxGitConfig+1)
	if err != nil {
		return nil, err
	}
	var before []byte
	if now.IsRegular() {
		if before, err = v.content(rel, now); err != nil {
			return nil, err
		}
	}
	return scope.CheckGitConfig(rel, v.policy.Load().GitConfig(), before, text), nil
}

// checkIndex returns why a staged file must not be the index of the repository at base.
// Without sha256 in a config there, git reads an index with SHA-1; clients cannot set it.
func (v *View) checkIndex(staged beneath.File, base string) (why, err error) {
	for dir := base; ; dir = parentOf(dir) {
		f, err := v.root.Object(beneath.Join(dir, "config"))
		if err == nil {
			st, failed := f.Stat()
			f.Close()
			if failed != nil {
				return nil, failed
			}
			if st.IsRegular() {
				text, err := v.content(beneath.Join(dir, "config"), &st)
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

// content reads a regular file that has the attributes st, up to the limit of a config
// and a byte more.
func (v *View) content(rel string, st *beneath.Stat) ([]byte, error) {
	f, err := v.root.Open(rel, unix.O_RDONLY, st.ID())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return allOf(f, scope.MaxGitConfig+1)
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
