package judge

import (
	"errors"
	"io"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Git returns why a policy does not let f become the file of git at rel. root has the other files of its repository, and base
// has the file before, with the attributes was; zero attributes stand for no file.
func Git(p *scope.Policy, kind scope.GitContent, root *beneath.Root, f beneath.File, rel string, base *beneath.Root,
	was *beneath.Stat) (why, err error) {
	if kind == scope.GitIndex {
		for _, tree := range slices.Compact([]*beneath.Root{root, base}) { // a commit may leave the config of one
			if why, err = otherFormat(tree, beneath.Parent(rel)); why != nil || err != nil {
				return why, err
			}
		}
		st, err := f.Stat()
		if err != nil {
			return nil, err
		}
		return scope.CheckGitIndex(f.Reader(), int64(st.Size)), nil
	}
	text, err := all(f, scope.MaxGitText+1)
	if err != nil {
		return nil, err
	}
	var before []byte
	if was.IsRegular() {
		if before, err = content(base, rel, was); err != nil {
			return nil, err
		}
	}
	return scope.CheckGit(kind, p.GitPath(rel), p.GitConfig(), before, text), nil
}

// otherFormat returns why no file can be judged as the index of the repository at dir. Without another format in a config
// there, git reads an index with SHA-1; clients cannot set it.
func otherFormat(root *beneath.Root, dir string) (why, err error) {
	for ; ; dir = beneath.Parent(dir) {
		config, err := root.Object(beneath.Join(dir, "config"))
		if err == nil {
			st, failed := config.Stat()
			config.Close()
			if failed != nil {
				return nil, failed
			}
			if st.IsRegular() {
				text, err := content(root, beneath.Join(dir, "config"), &st)
				if err != nil {
					return nil, err
				}
				if scope.GitFormat(text) != scope.GitSHA1 {
					return errors.New("an index with SHA-256, which the view does not read"), nil
				}
			}
		}
		if dir == "" {
			return nil, nil
		}
	}
}

// content reads a regular file that has the attributes st, up to the limit of a config
// and a byte more.
func content(root *beneath.Root, rel string, st *beneath.Stat) ([]byte, error) {
	f, err := root.Open(rel, unix.O_RDONLY, st.ID())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return all(f, scope.MaxGitText+1)
}

// all reads a file, up to a limit.
func all(f beneath.File, limit int64) ([]byte, error) {
	return io.ReadAll(io.NewSectionReader(f.Reader(), 0, limit))
}

// Stage copies a file of git that has the attributes st, up to the limit of its kind and a byte more, to a name that the
// policy hides. The copy has the file's owner, if this process may set that, and its times: git compares those of an
// index with the times of files.
func Stage(kind scope.GitContent, from beneath.File, st *beneath.Stat, dir beneath.Dir) (beneath.File, error) {
	if err := dir.Unlink(scope.StagedGitFile); err != nil && err != syscall.ENOENT { // of a view that was killed
		return beneath.File{}, err
	}
	to, err := dir.Create(scope.StagedGitFile, unix.O_RDWR, uint32(st.Mode)&0o777)
	if err != nil {
		return to, err
	}
	own, err := to.Stat()
	if err == nil && (own.Uid != st.Uid || own.Gid != st.Gid) {
		_ = to.Chown(int(st.Uid), int(st.Gid))
	}
	if err == nil {
		_, err = io.Copy(io.NewOffsetWriter(writerAt{to}, 0), io.NewSectionReader(from.Reader(), 0, Limit(kind)+1))
	}
	if err == nil {
		err = to.Utimes(timespec(st.Atime), timespec(st.Mtime))
	}
	if err != nil {
		to.Close()
		_ = dir.Unlink(scope.StagedGitFile) // the next one removes it, too
	}
	return to, err
}

// Limit returns the size of the largest file of a kind, in bytes.
func Limit(kind scope.GitContent) int64 {
	if kind == scope.GitIndex {
		return scope.MaxGitIndex
	}
	return scope.MaxGitText
}

func timespec(t unix.StatxTimestamp) unix.Timespec {
	return unix.Timespec{Sec: t.Sec, Nsec: int64(t.Nsec)}
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
