package fs

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// replaceConfig performs the rename of a file to the config of a git repository, if its
// content may be there. The file itself never is: clients may have it open, and would
// write to it afterwards. A new file with the content that was judged takes the place,
// and the client's file loses its name. The caller holds View.moves and View.alone.
func (v *View) replaceConfig(a *ask, old *place, oldName string, new *place, newName string, flags uint) error {
	refuse := func(why error) error {
		return v.refuse(a, audit.Event{Path: new.path(), Verdict: audit.Deny, Rule: "protect git-config: " + why.Error(), RuleKind: string(scope.KindProtect)}, syscall.EACCES)
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
	text, err := v.content(old.path(), &st)
	if err != nil {
		return err
	}
	var before []byte
	switch now, err := new.dir.Stat(newName); {
	case err == nil && flags&unix.RENAME_NOREPLACE != 0:
		return syscall.EEXIST
	case err == nil && now.IsDir():
		return syscall.EISDIR
	case err == nil && now.IsRegular():
		if before, err = v.content(new.path(), &now); err != nil {
			return err
		}
	case err != nil && err != syscall.ENOENT:
		return err
	}
	if err := scope.CheckGitConfig(v.policy.Load().GitConfig(), before, text); err != nil {
		return refuse(err)
	}
	if err := stage(new.dir, text, uint32(st.Mode)); err != nil {
		return err
	}
	if err := new.dir.Rename(scope.StagedGitConfig, new.dir, newName, 0); err != nil {
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

// content reads a regular file that has the attributes st, up to the limit of a config
// and a byte more.
func (v *View) content(rel string, st *beneath.Stat) ([]byte, error) {
	f, err := v.root.Open(rel, unix.O_RDONLY, st.ID())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	buf := make([]byte, scope.MaxGitConfig+1)
	for n := 0; ; {
		more, err := f.ReadAt(buf[n:], int64(n))
		if n += more; err != nil || more == 0 || n == len(buf) {
			return buf[:n], err
		}
	}
}

// stage writes a config under a name that the policy hides.
func stage(dir beneath.Dir, text []byte, mode uint32) error {
	if err := dir.Unlink(scope.StagedGitConfig); err != nil && err != syscall.ENOENT { // of a view that was killed
		return err
	}
	f, err := dir.Create(scope.StagedGitConfig, unix.O_WRONLY, mode&0o777)
	if err != nil {
		return err
	}
	defer f.Close()
	for n := 0; n < len(text); {
		more, err := f.WriteAt(text[n:], int64(n), false)
		if err != nil {
			return errors.Join(err, dir.Unlink(scope.StagedGitConfig))
		}
		n += more
	}
	return f.Sync(true)
}
