package mount

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// FileSystem is the file system that a directory is on.
type FileSystem struct {
	Type   string // as in /proc/mounts: nfs4, ceph, fuse.juicefs
	Shared bool   // others than this kernel may change its files, and fanotify(7) does not report that
}

// local are the file systems that only this kernel changes. Every other one counts as shared: an unknown network file
// system costs speed then, and shows no stale file. A mount of FUSE over a block device is fuseblk.
var local = []string{
	"bcachefs", "btrfs", "ecryptfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "fuse.fuse-overlayfs", "fuseblk", "hfsplus",
	"iso9660", "jfs", "msdos", "nilfs2", "ntfs3", "overlay", "ramfs", "reiserfs", "rootfs", "squashfs", "tmpfs",
	"ubifs", "udf", "vfat", "xfs", "zfs",
}

// found is what FileSystem has found of a mount, for foundTime: each of many agents that start mounts a view, and would read the
// table again for a directory of the same mount.
type found struct {
	FileSystem
	id int
	at time.Time
}

const foundTime = time.Second

var mountID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^mnt_id:\s*(\d+)$`) })

// FileSystem returns the file system of an open directory. It sends no request to a server, which may not respond:
// statfs(2) would.
func (t *Table) FileSystem(dir int) (FileSystem, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/thread-self/fdinfo/%d", dir)) // proc_pid_fdinfo(5)
	if err != nil {
		return FileSystem{}, fmt.Errorf("file system of a directory: %w", err)
	}
	number := mountID().FindSubmatch(text)
	if number == nil {
		return FileSystem{}, fmt.Errorf("file system of a directory: the kernel reports no mount: %w", unix.ENOTSUP)
	}
	id, _ := strconv.Atoi(string(number[1]))
	t.mu.Lock()
	last := t.last
	t.mu.Unlock()
	if last.id == id && time.Since(last.at) < foundTime {
		return last.FileSystem, nil
	}
	all, err := t.Read()
	if err != nil {
		return FileSystem{}, err
	}
	for _, m := range all {
		if m.ID == id {
			last = found{FileSystem{Type: m.FSType, Shared: !slices.Contains(local, m.FSType)}, id, time.Now()}
			t.mu.Lock()
			t.last = last
			t.mu.Unlock()
			return last.FileSystem, nil
		}
	}
	return FileSystem{}, fmt.Errorf("file system of a directory: mount %d is not in /proc/self/mountinfo: %w", id, unix.ENOENT)
}
