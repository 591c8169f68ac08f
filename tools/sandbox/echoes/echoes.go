// Package echoes repeats in a sandbox what the host has changed in a view, so that inotify(7) there reports it: see package echo.
package echoes

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/echo"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Do answers a request about the view that is mounted at a path. What fails is left out: a watcher then learns of it with the next change.
func Do(at string, r echo.Request) (reply echo.Reply, err error) {
	fd, err := unix.Open(at, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return reply, err
	}
	root := beneath.NewRoot(fd)
	defer root.Close()
	if len(r.Acts) == 0 {
		return look(fd)
	}
	runtime.LockOSThread() // the view knows the thread by the token
	defer runtime.UnlockOSThread()
	if number(fd, r.Token) == 0 { // the view would do what it does not recognise
		return reply, unix.ENOENT
	}
	for _, a := range r.Acts {
		act(root, a)
	}
	return reply, nil
}

// act performs an Act.
func act(root *beneath.Root, a echo.Act) {
	dir, err := root.Dir(string(a.Dir))
	if err != nil {
		return
	}
	defer dir.Close()
	name := string(a.Name)
	if name == "" {
		if st, err := dir.Self().Stat(); err == nil {
			_ = dir.Self().Chmod(uint32(st.Mode))
		}
		return
	}
	if a.Remove != 0 && number(dir.Self().FD(), name) == a.Remove {
		if a.IsDir {
			_ = dir.Rmdir(name)
		} else {
			_ = dir.Unlink(name)
		}
	}
	switch a.Create {
	case 0:
	case unix.S_IFDIR:
		_ = dir.Mkdir(name, 0o700)
	case unix.S_IFLNK:
		_ = dir.Symlink(".", name)
	default:
		_ = dir.Mknod(name, a.Create|0o600)
	}
	if a.Modify {
		modify(dir, name)
	}
}

// number returns the inode number of a name, without a request for its attributes: there may be no object; 0: there is no such name.
func number(dir int, name string) uint64 {
	var st unix.Statx_t
	if unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st) != nil {
		return 0
	}
	return st.Ino
}

// modify sets the size of a regular file to what it is. The file is opened first, and asked what it is: truncate(2) would follow a link
// that a program has put in its place, out of the view.
func modify(dir beneath.Dir, name string) {
	fd, err := unix.Openat(dir.Self().FD(), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st, in unix.Stat_t
	if unix.Fstat(fd, &st) == nil && unix.Fstat(dir.Self().FD(), &in) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Dev == in.Dev {
		_ = unix.Truncate(fmt.Sprintf("/proc/self/fd/%d", fd), st.Size)
	}
}

// The bounds of a look: a program may have any number of either.
const (
	maxProcesses   = 4096
	maxDescriptors = 1 << 16
)

// look returns what the processes of the sandbox watch in the view: proc_pid_fdinfo(5).
func look(root int) (reply echo.Reply, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return reply, err
	}
	device := fmt.Sprintf("sdev:%x", uint64(unix.Major(st.Dev))<<20|uint64(unix.Minor(st.Dev))) // as s_dev is printed
	processes, err := names("/proc", maxProcesses)
	left, seen := maxDescriptors, map[uint64]bool{}
	for _, pid := range processes {
		if pid[0] < '0' || pid[0] > '9' {
			continue
		}
		fds, _ := names("/proc/"+pid+"/fd", left) // an error: it has ended
		left -= len(fds)
		for _, n := range fds {
			if to, err := os.Readlink("/proc/" + pid + "/fd/" + n); err != nil || !strings.HasSuffix(to, "inotify") {
				continue
			}
			for _, inode := range watches("/proc/"+pid+"/fdinfo/"+n, device) {
				if len(seen) == echo.MaxWatched {
					return echo.Reply{All: true}, nil
				}
				if !seen[inode] {
					seen[inode] = true
					reply.Add(inode)
				}
			}
		}
	}
	return reply, err
}

func names(dir string, most int) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil || most <= 0 {
		return nil, err
	}
	defer d.Close()
	all, err := d.Readdirnames(most)
	if len(all) > 0 {
		err = nil
	}
	return all, err
}

// watches returns the inode numbers of an inotify descriptor's lines that have a device.
func watches(info, device string) (inodes []uint64) {
	f, err := os.Open(info)
	if err != nil {
		return nil
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		line := s.Bytes()
		if !bytes.HasPrefix(line, []byte("inotify ")) {
			continue
		}
		at, here := uint64(0), false
		for _, word := range strings.Fields(string(line)) {
			if hex, ok := strings.CutPrefix(word, "ino:"); ok {
				at, _ = strconv.ParseUint(hex, 16, 64)
			}
			here = here || word == device
		}
		if here {
			inodes = append(inodes, at)
		}
	}
	return inodes
}
