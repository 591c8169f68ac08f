package paths

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// directories returns the paths of the directories in a directory, in any order, without those that links lead to. What
// cannot be read has none. On ext4, xfs and tmpfs a directory of files alone is not listed.
func directories(dir string) (all []string) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if hasNone(f) {
		return nil
	}
	for {
		batch, err := f.ReadDir(1000)
		for _, e := range batch {
			if e.IsDir() {
				all = append(all, filepath.Join(dir, e.Name()))
			}
		}
		if err != nil {
			return all
		}
	}
}

// hasNone reports whether an open directory has no directories, by its link count: its own name and "." are 2, and each
// directory in it adds one with "..". Other file systems may count otherwise.
func hasNone(dir *os.File) bool {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if unix.Fstatfs(int(dir.Fd()), &fs) != nil || unix.Fstat(int(dir.Fd()), &st) != nil || st.Nlink != 2 {
		return false
	}
	return fs.Type == unix.EXT4_SUPER_MAGIC || fs.Type == unix.XFS_SUPER_MAGIC || fs.Type == unix.TMPFS_MAGIC
}

// Resolve returns an absolute path without symbolic links, also if what it names does not exist yet. A dangling link on the way
// is an error: whoever makes its target would choose what is at path.
func Resolve(path string) (string, error) {
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		to, err := filepath.EvalSymlinks(at)
		if err == nil {
			return filepath.Join(to, strings.TrimPrefix(filepath.Clean(path), at)), nil
		}
		if info, no := os.Lstat(at); no == nil && info.Mode()&fs.ModeSymlink != 0 {
			return "", fmt.Errorf("%s is a link to nowhere: remove it", at)
		}
		if at == "/" {
			return "", err
		}
	}
}
