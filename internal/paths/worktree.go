package paths

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/printable"
)

// Worktree is where the repository of a linked worktree is: git-worktree(1).
type Worktree struct {
	Common string // the directory that all worktrees of the repository have, without links
	Name   string // of the worktree's own directory in Common/worktrees
}

// maxGitFile bounds the files of git that have a path, in bytes.
const maxGitFile = 8 << 10

// WorktreeOf returns the repository of a directory that is a linked worktree, and nil for any other. The error says why it is not
// followed. What the directory says alone is not believed, for its agent may have written it: the repository must name the directory, and
// belong to the same user.
func WorktreeOf(dir string) (*Worktree, error) {
	text, err := gitPath(filepath.Join(dir, ".git"))
	to, linked := strings.CutPrefix(text, "gitdir: ")
	if err != nil || !linked {
		return nil, nil // an ordinary repository, or none
	}
	own, err := filepath.EvalSymlinks(absoluteIn(dir, to))
	if err != nil || Meet(dir, own) {
		return nil, nil
	}
	if filepath.Base(filepath.Dir(own)) != "worktrees" { // a submodule, or a repository of --separate-git-dir, which names no directory
		return nil, fmt.Errorf("its .git leads to %s, which is followed only if you name it: %s", own,
			printable.Command("scopefs", "run", "--with", own))
	}
	w := &Worktree{Common: filepath.Dir(filepath.Dir(own)), Name: filepath.Base(own)}
	back, err := gitPath(filepath.Join(own, "gitdir"))
	if err == nil {
		back, err = filepath.EvalSymlinks(absoluteIn(own, back))
	}
	common, wrong := gitPath(filepath.Join(own, "commondir"))
	switch {
	case err != nil || back != filepath.Join(dir, ".git"):
		err = errors.New("that repository has no worktree here: git worktree repair")
	case wrong != nil || absoluteIn(own, common) != w.Common:
		err = errors.New("its commondir leads elsewhere")
	case !isGitDirectory(w.Common):
		err = fmt.Errorf("%s is no repository", w.Common)
	case ownerOf(w.Common) != ownerOf(dir) || ownerOf(own) != ownerOf(dir):
		err = errors.New("it belongs to another user")
	case !utf8.ValidString(own):
		err = errors.New("its path is not UTF-8")
	case Meet(dir, w.Common):
		err = errors.New("one is inside the other")
	default:
		err = Refuse("the repository", w.Common, "move it", nil)
	}
	if err != nil {
		return nil, fmt.Errorf("its .git leads to %s: %w", own, err)
	}
	return w, nil
}

// gitPath returns the line of a small regular file.
func gitPath(name string) (string, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, fmt.Errorf("%s is no file", name))
	}
	text, err := io.ReadAll(io.LimitReader(f, maxGitFile))
	line := strings.TrimRight(string(text), "\r\n")
	if err == nil && (len(text) == maxGitFile || line == "" || strings.ContainsAny(line, "\n\x00")) {
		err = fmt.Errorf("%s has no path", name)
	}
	return line, err
}

func absoluteIn(dir, name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(dir, name)
}

// isGitDirectory goes by what git does: is_git_directory in its setup.c.
func isGitDirectory(dir string) bool {
	_, head := os.Lstat(filepath.Join(dir, "HEAD"))
	objects, err1 := os.Stat(filepath.Join(dir, "objects"))
	refs, err2 := os.Stat(filepath.Join(dir, "refs"))
	return head == nil && err1 == nil && err2 == nil && objects.IsDir() && refs.IsDir()
}
