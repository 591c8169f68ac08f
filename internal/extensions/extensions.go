// Package extensions copies the files of an extension from a directory, a tar archive or a git repository. It follows
// no symbolic link, runs no program of the source, and copies only directories, regular files and symbolic links.
package extensions

import (
	"archive/tar"
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// The limits of an extension.
const (
	MaxFiles = 50_000
	MaxBytes = 512 << 20
)

// Settings is the file of an extension that the operator writes. No copy has that of the source.
const Settings = ".env"

// Manifest returns the name of the manifest of the extension in dir. ok is false if there is none.
func Manifest(dir string) (name string, ok bool) {
	names := []string{"gemini-extension.json", "gemini-extension.yaml", "gemini-extension.yml", "extension.yaml", "extension.yml"}
	for _, name := range names {
		if st, err := os.Lstat(filepath.Join(dir, name)); err == nil && st.Mode().IsRegular() {
			return name, true
		}
	}
	return "", false
}

// Is reports whether a path may be an extension: a directory, or a tar archive by its name.
func Is(source string) bool {
	st, err := os.Stat(source)
	return err == nil && (st.IsDir() || isArchive(source))
}

func isArchive(name string) bool {
	return slices.ContainsFunc([]string{".tar", ".tar.gz", ".tgz"}, func(end string) bool { return strings.HasSuffix(name, end) })
}

// Copy copies an extension into an empty directory and returns the directory in it that has the manifest. Copy
// takes a directory for a git repository if a ref is given or the directory has no manifest, and reads its commit ref or HEAD.
func Copy(ctx context.Context, source, ref, into string) (dir string, err error) {
	st, err := os.Stat(source)
	if err != nil {
		return "", err
	}
	out, err := os.OpenRoot(into)
	if err != nil {
		return "", err
	}
	defer out.Close()
	c := &target{root: out}
	_, plain := Manifest(source)
	switch {
	case !st.IsDir() && ref != "":
		err = errors.New("is no git repository, and only that has a --ref: leave it out")
	case !st.IsDir():
		err = c.archive(source)
	case plain && ref == "":
		err = c.directory(source)
	default:
		err = c.repository(ctx, source, ref)
	}
	if err == nil {
		err = filepath.WalkDir(into, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				err = os.Chmod(name, 0o755) // whatever the umask: servers run as the agent's user
			}
			return err
		})
	}
	if err != nil {
		return "", err
	}
	if _, ok := Manifest(into); ok {
		return into, nil
	}
	if names, err := os.ReadDir(into); err == nil && len(names) == 1 && names[0].IsDir() { // archives have a directory around
		dir = filepath.Join(into, names[0].Name())
		if _, ok := Manifest(dir); ok {
			return dir, os.RemoveAll(filepath.Join(dir, Settings))
		}
	}
	return "", errors.New("has no gemini-extension.json: give the directory, archive or repository that has it at its top")
}

var errLarge = fmt.Errorf("is larger than %d MiB: remove files", MaxBytes>>20)

// target is the directory that a copy goes to, and what it has so far.
type target struct {
	root  *os.Root
	files int
	bytes int64
}

// add creates a file of this size, a directory or a symbolic link. Its name is relative.
func (c *target) add(name string, mode fs.FileMode, link string, size int64, from io.Reader) error {
	name = path.Clean(name)
	if !filepath.IsLocal(name) {
		return fmt.Errorf("%q leads out of the extension: remove it", name)
	}
	if name == "." || name == Settings {
		return nil
	}
	if c.files++; c.files > MaxFiles {
		return fmt.Errorf("has more than %d files: remove some", MaxFiles)
	}
	if err := c.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	switch mode.Type() {
	case fs.ModeDir:
		return c.root.MkdirAll(name, 0o755)
	case fs.ModeSymlink:
		return c.root.Symlink(link, name)
	case 0:
	default:
		return fmt.Errorf("%q is no file, directory or symbolic link: remove it", name)
	}
	if size > MaxBytes-c.bytes {
		return errLarge
	}
	f, err := c.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644|mode.Perm()&0o111)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(from, MaxBytes-c.bytes+1))
	if c.bytes += n; err == nil && c.bytes > MaxBytes {
		err = errLarge // it grew
	}
	if err == nil {
		err = f.Chmod(0o644 | mode.Perm()&0o111) // whatever the umask
	}
	return errors.Join(err, f.Close())
}

// directory copies a directory, without what git keeps there.
func (c *target) directory(name string) error {
	from, err := os.OpenRoot(name)
	if err != nil {
		return err
	}
	defer from.Close()
	return fs.WalkDir(from.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name == ".git" && d.IsDir():
			return fs.SkipDir
		case name == ".git":
			return nil
		case d.Type() == fs.ModeSymlink:
			link, err := from.Readlink(name)
			if err != nil {
				return err
			}
			return c.add(name, fs.ModeSymlink, link, 0, nil)
		case !d.Type().IsRegular():
			return c.add(name, d.Type(), "", 0, nil)
		}
		f, err := from.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0) // it may be a FIFO by now
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return err
		}
		return c.add(name, st.Mode(), "", st.Size(), f)
	})
}

// archive copies a tar archive, compressed by gzip or not.
func (c *target) archive(name string) error {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return errors.Join(err, errors.New("is no regular file: give one"))
	}
	in := bufio.NewReader(f)
	if magic, _ := in.Peek(2); string(magic) != "\x1f\x8b" {
		return c.tar(in)
	}
	plain, err := gzip.NewReader(in)
	if err != nil {
		return err
	}
	return c.tar(plain)
}

func (c *target) tar(in io.Reader) error {
	all := tar.NewReader(io.LimitReader(in, 2*MaxBytes)) // padding and what is left out count, too
	for {
		h, err := all.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("is no tar archive: %w", err)
		}
		mode := h.FileInfo().Mode()
		switch h.Typeflag {
		case tar.TypeXGlobalHeader:
			continue
		case tar.TypeReg, tar.TypeDir, tar.TypeSymlink:
		default: // a hard link, too, which has the mode of a file
			mode |= fs.ModeIrregular
		}
		if err := c.add(h.Name, mode, h.Linkname, h.Size, all); err != nil {
			return err
		}
	}
}

// repository copies a commit of a git repository. git-upload-pack reads it, which runs no program that the repository's
// configuration names (git(1), "Security"), and refuses a repository of another user. All else is done in a
// clone that has neither its configuration nor its hooks. Submodules are empty directories.
func (c *target) repository(ctx context.Context, name, ref string) error {
	ctx, cancel := context.WithTimeout(ctx, gitTime)
	defer cancel()
	source, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "scopefs-git-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	clone := filepath.Join(temp, "clone")
	for _, words := range [][]string{
		{"init", "--quiet", "--bare", "--template=", clone},
		{"-C", clone, "fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--", source,
			"+" + cmp.Or(ref, "HEAD") + ":refs/heads/extension"},
	} {
		if err := run(ctx, temp, nil, words...); err != nil {
			return err
		}
	}
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, temp, write, "-C", clone, "archive", "--format=tar", "refs/heads/extension")
		write.CloseWithError(err)
		done <- err
	}()
	err = c.tar(read)
	if err == nil {
		_, err = io.Copy(io.Discard, read)
	}
	read.CloseWithError(errors.New("read")) // git ends at its next write
	return errors.Join(err, <-done)
}

// run runs a command of git without the configuration of the host, the user or a caller.
func run(ctx context.Context, home string, out io.Writer, words ...string) error {
	env := []string{"HOME=" + home, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ALLOW_PROTOCOL=file"}
	cmd := gitCommand(ctx, env, append([]string{"-c", "protocol.file.allow=always", "-c", "transfer.fsckObjects=true",
		"-c", "fetch.recurseSubmodules=false"}, words...)...)
	cmd.Dir, cmd.Stdout = home, out
	err := runGit(cmd)
	if errors.Is(err, errOwner) {
		return fmt.Errorf("%w: clone it as yourself, and import the clone", err)
	}
	return err
}
