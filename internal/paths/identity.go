package paths

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Identity returns what identifies an open directory for good: its inode number and its birth time, which nobody can set. The number of
// the device is not part of it, because the next boot may give another one. It returns "" where one of them does not last: on an
// overlay, on FAT, and on file systems that record no birth time.
func Identity(fd int) string {
	var st unix.Statx_t
	var fs unix.Statfs_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &st) != nil ||
		st.Mask&unix.STATX_BTIME == 0 || unix.Fstatfs(fd, &fs) != nil {
		return ""
	}
	switch fs.Type {
	case unix.OVERLAYFS_SUPER_MAGIC, unix.MSDOS_SUPER_MAGIC, unix.EXFAT_SUPER_MAGIC:
		return ""
	}
	return fmt.Sprintf("%d %d.%09d", st.Ino, st.Btime.Sec, st.Btime.Nsec)
}

func identityAt(dir string) string {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	return Identity(fd)
}

// identityFile has the identity of the directory for which the project was made. Without it, the directory is known by its path alone.
func (p Project) identityFile() string { return filepath.Join(p.Base, "directory") }

// isOther reports whether a directory at the project's path is not the one for which the project was made.
func (p Project) isOther(identity string) bool {
	was, err := os.ReadFile(p.identityFile())
	return err == nil && identity != "" && strings.TrimSpace(string(was)) != identity
}

// IsOther reports whether an open directory at the project's path is not the one for which the project was made.
func (p Project) IsOther(fd int) bool { return p.isOther(Identity(fd)) }
