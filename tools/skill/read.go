package skill

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/frontmatter"
)

const main = "SKILL.md"

// readFile returns up to maxText bytes of a regular file of a skill, and whether
// the file is longer. It returns fs.ErrNotExist for any other file type and for a
// path with a symbolic link.
func readFile(dir, skill, rel string) (text string, more bool, err error) {
	f, err := open(dir, path.Join(skill, rel))
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	b, err := bounded.Read(f, maxText)
	if errors.Is(err, bounded.ErrTooLong) {
		return string(bounded.Whole(b)), true, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("read skill: %w", err)
	}
	return string(b), false, nil
}

// open opens a regular file beneath dir. os.Root follows symbolic links that stay
// beneath the root. Therefore each component is compared with os.SameFile before
// and after it is opened.
func open(dir, rel string) (*os.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open skills: %w", err)
	}
	defer func() { root.Close() }()
	parts := strings.Split(rel, "/")
	for _, part := range parts[:len(parts)-1] {
		sub, err := openDir(root, part)
		if err != nil {
			return nil, err
		}
		root.Close()
		root = sub
	}
	name := parts[len(parts)-1]
	seen, err := root.Lstat(name)
	if err != nil {
		return nil, gone(err)
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a FIFO would block
	if err != nil {
		return nil, gone(err)
	}
	is, err := f.Stat()
	if err != nil || !is.Mode().IsRegular() || !os.SameFile(seen, is) {
		f.Close()
		return nil, fs.ErrNotExist
	}
	return f, nil
}

func openDir(root *os.Root, name string) (*os.Root, error) {
	seen, err := root.Lstat(name)
	if err != nil {
		return nil, gone(err)
	}
	if !seen.IsDir() {
		return nil, fs.ErrNotExist
	}
	sub, err := root.OpenRoot(name)
	if err != nil {
		return nil, gone(err)
	}
	is, err := sub.Stat(".")
	if err != nil || !os.SameFile(seen, is) {
		sub.Close()
		return nil, fs.ErrNotExist
	}
	return sub, nil
}

// gone returns fs.ErrNotExist for the errors of a missing or invalid path. It
// wraps any other error, such as EACCES, for the operator's log.
func gone(err error) error {
	for _, e := range []error{syscall.ENOTDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.ENXIO, syscall.EINVAL} {
		if errors.Is(err, e) {
			return fs.ErrNotExist
		}
	}
	// os.Root's error for a path that escapes is no errno.
	if _, errno := errors.AsType[syscall.Errno](err); errors.Is(err, fs.ErrNotExist) || !errno {
		return fs.ErrNotExist
	}
	return fmt.Errorf("open skill: %w", err)
}

// files lists up to maxFiles regular files of a skill, except SKILL.md. It skips
// directories that it cannot read.
func files(dir, skill string) (list []string, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open skills: %w", err)
	}
	defer root.Close()
	sub, err := openDir(root, skill)
	if err != nil {
		return nil, err
	}
	defer sub.Close()
	err = fs.WalkDir(sub.FS(), ".", func(rel string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // continue with the other directories
		case len(list) == maxFiles:
			return fs.SkipAll
		case d.Type().IsRegular() && rel != main:
			list = append(list, rel)
		}
		return nil
	})
	return list, err
}

// description returns the description in the frontmatter of a SKILL.md, on one
// line and cut to maxDescription characters.
func description(text string) string {
	about := ""
	if front, _, err := frontmatter.Cut([]byte(text)); err == nil {
		about, _ = frontmatter.Text(front, "description")
	}
	words := []rune(strings.Join(strings.Fields(about), " "))
	if len(words) == 0 {
		return "(no description in SKILL.md)"
	}
	return string(words[:min(len(words), maxDescription)])
}
