package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/internal/paths"
)

// privateRun begins the names of run directories that are made for one command.
const privateRun = "scopefs-run-"

// baseLink names the link to the base in a run directory, for Running.
const baseLink = "base"

// agentLink names a link that says whose commands share the daemon: see sharedBy.
const agentLink = "agent"

// newRun makes a run directory for one daemon of a base, with a link to shared unless that is empty, below the temporary directory, and
// returns its descriptor, which holds a lock. The daemon inherits it. Once both are
// dead, however they died, the lock is free and the next newRun removes the directory.
func newRun(base, shared string) (dir string, lock *os.File, err error) {
	sweepRuns()
	for range 10 {
		if dir, err = os.MkdirTemp("", privateRun); err != nil {
			return "", nil, fmt.Errorf("run directory: %w: set TMPDIR to a directory that can be written to", err)
		}
		// Another command may sweep until we have the lock.
		if lock, err = lockRun(dir, unix.LOCK_SH); err == nil {
			// Agents' users pass through to the mount point, which only they see.
			err = errors.Join(lock.Chmod(0o711), os.Symlink(base, filepath.Join(dir, baseLink)))
			if shared != "" {
				err = errors.Join(err, writeEnviron(dir), os.Symlink(shared, filepath.Join(dir, agentLink)))
			}
			if err == nil {
				return dir, lock, nil
			}
			lock.Close()
		}
	}
	return "", nil, fmt.Errorf("run directory: %w", err)
}

// Running returns the directories of the daemons that run for other commands of this user on a base.
func Running(p paths.Paths) (running []paths.Paths) {
	for _, of := range All() {
		if of.Base == p.Base {
			running = append(running, paths.Paths{Base: p.Base, State: p.State, Run: of.Run})
		}
	}
	return running
}

// All returns the directories of the daemons that run for other commands of this user, on any base.
func All() (running []paths.Paths) {
	all, _ := os.ReadDir(os.TempDir())
	for _, e := range all {
		if !strings.HasPrefix(e.Name(), privateRun) {
			continue
		}
		dir := filepath.Join(os.TempDir(), e.Name())
		base, err := os.Readlink(filepath.Join(dir, baseLink))
		if err != nil {
			continue
		}
		if f, err := lockRun(dir, unix.LOCK_SH); err == nil { // a directory of this user
			f.Close()
			running = append(running, paths.Paths{Base: base, Run: dir})
		}
	}
	return running
}

// lockRun opens a run directory of this user and locks it, without waiting.
func lockRun(dir string, how int) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), dir)
	var opened, named unix.Stat_t
	if err = unix.Flock(fd, how|unix.LOCK_NB); err == nil {
		err = errors.Join(unix.Fstat(fd, &opened), unix.Lstat(dir, &named))
	}
	if err == nil && (opened.Ino != named.Ino || opened.Dev != named.Dev || opened.Uid != uint32(os.Geteuid())) {
		err = fmt.Errorf("%q is another's", dir)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// sweepRuns removes the run directories of this user that nobody holds any more.
func sweepRuns() {
	all, _ := os.ReadDir(os.TempDir())
	for _, e := range all {
		if !strings.HasPrefix(e.Name(), privateRun) {
			continue
		}
		if f, err := lockRun(filepath.Join(os.TempDir(), e.Name()), unix.LOCK_EX); err == nil {
			removeRun(f)
			f.Close()
		}
	}
}

// runs reports whether a command or its daemon has a run directory.
func runs(p paths.Paths) bool {
	f, err := lockRun(p.Run, unix.LOCK_EX)
	if err == nil {
		f.Close()
	}
	return errors.Is(err, unix.EWOULDBLOCK)
}

// removeEnded is RemoveRun unless the daemon goes on.
func removeEnded(p paths.Paths) {
	if f, err := lockRun(p.Run, unix.LOCK_EX); err == nil {
		removeRun(f)
		f.Close()
	}
}

// RemoveRun removes a run directory that was made for one daemon, which has ended.
func RemoveRun(p paths.Paths) {
	if f, err := lockRun(p.Run, unix.LOCK_SH); err == nil {
		removeRun(f)
		f.Close()
	}
}

// removeRun removes an open run directory with what a daemon makes there: files,
// and directories of files and of mount points. What is mounted there still is
// not touched, nor anything deeper. By descriptor: others may write to TMPDIR.
func removeRun(dir *os.File) {
	entries, _ := dir.ReadDir(-1)
	for _, e := range entries {
		if !e.IsDir() {
			_ = unix.Unlinkat(int(dir.Fd()), e.Name(), 0)
			continue
		}
		fd, err := unix.Openat(int(dir.Fd()), e.Name(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		sub := os.NewFile(uintptr(fd), filepath.Join(dir.Name(), e.Name()))
		below, _ := sub.ReadDir(-1)
		for _, e := range below {
			if e.IsDir() {
				removeMountPoint(sub, e.Name())
			} else {
				_ = unix.Unlinkat(fd, e.Name(), 0)
			}
		}
		sub.Close()
		_ = unix.Unlinkat(int(dir.Fd()), e.Name(), unix.AT_REMOVEDIR)
	}
	_ = unix.Rmdir(dir.Name())
}

// removeMountPoint removes an empty directory on which nothing is mounted. A
// daemon that was killed left it immutable.
func removeMountPoint(dir *os.File, name string) {
	mounted, err := mount.At(filepath.Join(dir.Name(), name))
	if err != nil || len(mounted) > 0 {
		return
	}
	_ = mount.Immutable(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name), false)
	_ = unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
}
