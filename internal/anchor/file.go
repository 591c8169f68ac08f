package anchor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// toFile appends the head to a file, which no agent can reach, on another file system than the log. It never removes anything: a
// head that was cut off, because the disk was full, stays, and readers skip it.
func toFile(r Request) (err error) {
	dir, name := filepath.Split(r.File)
	at, err := openDir(dir)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	if _, err := outside(at, r.Private); err != nil {
		return fmt.Errorf("%s: %w", r.File, err)
	}
	var log, there unix.Stat_t
	if err := unix.Stat(r.State, &log); err != nil {
		return &os.PathError{Op: "stat", Path: r.State, Err: err}
	}
	if err := unix.Fstatat(at, name, &there, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		err = unix.Fstat(at, &there)
		if err != nil {
			return &os.PathError{Op: "stat", Path: dir, Err: err}
		}
	} else if err != nil {
		return &os.PathError{Op: "stat", Path: r.File, Err: err}
	}
	if log.Dev == there.Dev {
		return fmt.Errorf("%s: is on the file system of the log: mount the other one, or name a file there", r.File)
	}
	fd, err := unix.Openat(at, name, unix.O_RDWR|unix.O_APPEND|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o644)
	if errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("%s: is a symbolic link: name the file itself", r.File)
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: r.File, Err: err}
	}
	f := os.NewFile(uintptr(fd), r.File)
	defer func() { err = errors.Join(err, f.Close()) }()
	return appendHead(f, r)
}

func openDir(dir string) (int, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return fd, nil
}

// outside returns the path of a directory without links. It returns an error for one in or below one of several, by whatever name
// it was opened.
func outside(at int, private []string) (real string, err error) {
	if real, err = os.Readlink(fmt.Sprint("/proc/self/fd/", at)); err != nil {
		return "", err
	}
	return real, Outside(real, private)
}

// Outside returns an error for a path without links that is one of several directories or below.
func Outside(real string, private []string) error {
	for _, own := range private {
		if to, err := filepath.EvalSymlinks(own); err == nil {
			own = to
		}
		if own != "" && strings.HasPrefix(real+"/", strings.TrimSuffix(own, "/")+"/") {
			return fmt.Errorf("is in %s, which is scopefs's own or an agent's: name a file elsewhere", own)
		}
	}
	return nil
}

func appendHead(f *os.File, r Request) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !info.Mode().IsRegular() || ok && st.Nlink > 1 {
		return fmt.Errorf("%s: is no regular file of one name: name another one", r.File)
	}
	text := append(r.Head, '\n')
	if size := info.Size(); size > 0 {
		var last [1]byte
		if _, err := f.ReadAt(last[:], size-1); err != nil {
			return err
		}
		if last[0] != '\n' { // the disk was full
			text = append([]byte("\n"), text...)
		}
	}
	if _, err := f.Write(text); err != nil {
		return err
	}
	return f.Sync()
}
