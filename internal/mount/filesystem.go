package mount

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"

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
	"iso9660", "jfs", "msdos", "nilfs2", "ntfs3", "overlay", "ramfs", "reiserfs", "rootfs", "squashfs", "tmpfs", "ubifs", "udf", "vfat", "xfs", "zfs",
}

var mountID = regexp.MustCompile(`(?m)^mnt_id:\s*(\d+)$`)

// FileSystem returns the file system of an open directory. It sends no request to a server, which may not respond:
// statfs(2) would.
func (t *Table) FileSystem(dir int) (FileSystem, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/thread-self/fdinfo/%d", dir)) // proc_pid_fdinfo(5)
	if err != nil {
		return FileSystem{}, fmt.Errorf("file system of a directory: %w", err)
	}
	found := mountID.FindSubmatch(text)
	if found == nil {
		return FileSystem{}, fmt.Errorf("file system of a directory: the kernel reports no mount: %w", unix.ENOTSUP)
	}
	id, _ := strconv.Atoi(string(found[1]))
	all, err := t.Read()
	if err != nil {
		return FileSystem{}, err
	}
	for _, m := range all {
		if m.ID == id {
			return FileSystem{Type: m.FSType, Shared: !slices.Contains(local, m.FSType)}, nil
		}
	}
	return FileSystem{}, fmt.Errorf("file system of a directory: mount %d is not in /proc/self/mountinfo: %w", id, unix.ENOENT)
}
