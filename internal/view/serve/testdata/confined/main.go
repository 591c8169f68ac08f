// Confined is a view process that an attacker has taken over. It confines
// itself as a view does, then attempts forbidden operations. For each attempt
// it prints a line with its name and the errno.
package main

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/view/serve"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope/beneath"
)

// foreignFD is a directory of the host, as if left open by mistake.
const foreignFD = wire.WireFD + 1

func main() {
	watch, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_REPORT_DFID_NAME, unix.O_RDONLY)
	if err != nil {
		fmt.Println("no watch:", err)
	}
	needs := serve.Needs{Passthrough: os.Args[1] != "mediated" && os.Args[1] != "caller", Caller: os.Args[1] == "caller", Spool: true}
	kept := os.Args[1] == "kept"
	if kept {
		needs.History, needs.Mount = wire.HistoryFD, wire.MountFD
	}
	means, err := serve.Confine(wire.RootFD, needs)
	if err != nil {
		fmt.Println("refused:", err)
		os.Exit(1)
	}
	fmt.Println("confined:", means)
	other := os.Args[2] // another agent's file, by its host path
	open := func(at int, path string, flags uint64) error {
		fd, err := unix.Openat2(at, path, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC})
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	raw := func(nr, a, b, c uintptr) error {
		if _, _, errno := unix.Syscall6(nr, a, b, c, 0, 0, 0); errno != 0 {
			return errno
		}
		return nil
	}
	text := func(s string) uintptr {
		p, _ := unix.BytePtrFromString(s)
		return uintptr(unsafe.Pointer(p))
	}
	var st unix.Statx_t
	try := func(what string, err error) {
		if errno, ok := err.(unix.Errno); ok {
			fmt.Println(what+":", unix.ErrnoName(errno))
			return
		}
		fmt.Println(what+":", err)
	}
	const cwd = unix.AT_FDCWD
	// Controls: the view's own files.
	try("own: open", open(wire.RootFD, "f", unix.O_RDWR))
	try("own: absolute", open(cwd, "/f", unix.O_RDONLY))
	try("own: create", openCreate(wire.RootFD, "made"))
	if kept {
		beside(try)
	} else {
		try("call clone data", raw(unix.SYS_IOCTL, wire.RootFD, unix.FICLONE, wire.RootFD))
	}
	// Files.
	for i, at := range []int{cwd, wire.RootFD, wire.FuseFD, wire.WireFD, wire.HistoryFD, wire.MountFD} {
		for _, path := range []string{"/etc/passwd", "../../../../../../etc/passwd", "/proc/self/root/etc/passwd", "/proc/1/root/etc/passwd",
			"/proc/self/fd/6/FOREIGN", other, "/../" + other, "link", "up", "/link", "up/FOREIGN", "/dev/null"} {
			try(fmt.Sprintf("open %d %s", i, path), open(at, path, unix.O_RDONLY))
			try(fmt.Sprintf("path %d %s", i, path), open(at, path, unix.O_PATH))
		}
	}
	try("stat other", unix.Statx(cwd, other, 0, unix.STATX_ALL, &st))
	// The spool: it can be written to, and nothing else.
	_, err = unix.Write(wire.SpoolFD, []byte("event"))
	try("own: spool", err)
	for _, high := range []uintptr{0, 1 << 32, 1 << 63} { // the kernel ignores the upper half of a descriptor
		fd := high | wire.SpoolFD
		for what, err := range map[string]error{
			"append":   raw(unix.SYS_FCNTL, fd, unix.F_SETFL, 0),
			"copy":     raw(unix.SYS_FCNTL, fd, unix.F_DUPFD, 0),
			"truncate": raw(unix.SYS_FTRUNCATE, fd, 0, 0),
			"punch":    raw(unix.SYS_FALLOCATE, fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0),
			"pwrite":   raw(unix.SYS_PWRITE64, fd, text("x"), 1),
			"pwritev":  raw(unix.SYS_PWRITEV, fd, 0, 0),
			"pwritev2": raw(unix.SYS_PWRITEV2, fd, 0, 0),
			"dup":      raw(unix.SYS_DUP, fd, 0, 0),
			"dup3":     raw(unix.SYS_DUP3, fd, 20, 0),
		} {
			try(fmt.Sprintf("call spool %x %s", high, what), err)
		}
	}
	try("device", open(wire.RootFD, "zero", unix.O_RDWR))
	// An open descriptor outside the scope: Landlock.
	try("left open: read", open(foreignFD, "FOREIGN", unix.O_RDONLY))
	try("left open: write", open(foreignFD, "FOREIGN", unix.O_WRONLY))
	try("left open: create", openCreate(foreignFD, "made"))
	try("left open: list", open(foreignFD, ".", unix.O_RDONLY|unix.O_DIRECTORY))
	try("left open: unlink", unix.Unlinkat(foreignFD, "FOREIGN", 0))
	try("left open: rename", unix.Renameat2(foreignFD, "FOREIGN", wire.RootFD, "stolen", 0))
	try("left open: link", unix.Linkat(foreignFD, "FOREIGN", wire.RootFD, "stolen", 0))
	try("left open: mkdir", unix.Mkdirat(foreignFD, "made", 0o755))
	// A watch may cover only the view's own directories.
	for what, flags := range map[string]uint{"file system": unix.FAN_MARK_FILESYSTEM, "mount": unix.FAN_MARK_MOUNT, "inode, plainly": 0} {
		try("call watch a "+what, unix.FanotifyMark(watch, unix.FAN_MARK_ADD|flags, unix.FAN_OPEN|unix.FAN_MODIFY, wire.RootFD, "."))
	}
	// System calls, with arguments that are harmless without confinement. The
	// filter decides before the kernel checks the arguments.
	try("mknod", unix.Mknodat(wire.RootFD, "dev", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
	for what, err := range map[string]error{
		"socket":      raw(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0),
		"inet":        raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0),
		"connect":     raw(unix.SYS_CONNECT, wire.WireFD, 0, 0),
		"execve":      raw(unix.SYS_EXECVE, 0, 0, 0),
		"execveat":    raw(unix.SYS_EXECVEAT, wire.RootFD, 0, 0),
		"clone":       raw(unix.SYS_CLONE, unix.CLONE_SIGHAND|uintptr(unix.SIGCHLD), 0, 0),
		"clone3":      raw(unix.SYS_CLONE3, 0, 0, 0),
		"mount":       raw(unix.SYS_MOUNT, 0, 0, 0),
		"umount":      raw(unix.SYS_UMOUNT2, 0, 0, 0),
		"fsopen":      raw(unix.SYS_FSOPEN, text("tmpfs"), 0, 0),
		"fsmount":     raw(unix.SYS_FSMOUNT, wire.RootFD, 0, 0),
		"setattr":     raw(unix.SYS_MOUNT_SETATTR, wire.RootFD, 0, 0),
		"open_tree":   raw(unix.SYS_OPEN_TREE, wire.RootFD, text(""), unix.AT_EMPTY_PATH),
		"move_mount":  raw(unix.SYS_MOVE_MOUNT, wire.RootFD, 0, 0),
		"setns":       raw(unix.SYS_SETNS, wire.WireFD, 0, 0),
		"unshare":     raw(unix.SYS_UNSHARE, 1, 0, 0),
		"chroot":      raw(unix.SYS_CHROOT, 0, 0, 0),
		"pivot_root":  raw(unix.SYS_PIVOT_ROOT, 0, 0, 0),
		"chdir":       raw(unix.SYS_CHDIR, text("/"), 0, 0),
		"ptrace":      raw(unix.SYS_PTRACE, unix.PTRACE_ATTACH, 0, 0),
		"vm_readv":    raw(unix.SYS_PROCESS_VM_READV, 1, 0, 0),
		"kill":        raw(unix.SYS_KILL, 1, 0, 0),
		"bpf":         raw(unix.SYS_BPF, 0, 0, 0),
		"io_uring":    raw(unix.SYS_IO_URING_SETUP, 1, 0, 0),
		"byhandle":    raw(unix.SYS_OPEN_BY_HANDLE_AT, wire.RootFD, 0, 0),
		"prctl":       raw(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1, 0),
		"open":        raw(unix.SYS_OPEN, text("/f"), 0, 0),
		"openat":      raw(unix.SYS_OPENAT, wire.RootFD, text("f"), 0),
		"ioctl":       raw(unix.SYS_IOCTL, wire.RootFD, 0x80087601, 0),
		"setuid":      raw(unix.SYS_SETUID, 0, 0, 0),
		"capset":      raw(unix.SYS_CAPSET, 0, 0, 0),
		"reboot":      raw(unix.SYS_REBOOT, 0, 0, 0),
		"init_module": raw(unix.SYS_INIT_MODULE, 0, 0, 0),
		"keyctl":      raw(unix.SYS_KEYCTL, 0, 0, 0),
		"perf":        raw(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0),
		"swapon":      raw(unix.SYS_SWAPON, 0, 0, 0),
		"landlock":    raw(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 0),
	} {
		try("call "+what, err)
	}
	if beneath.XattrsAt() {
		try("call fchdir", raw(unix.SYS_FCHDIR, wire.RootFD, 0, 0))
		try("call xattr", raw(unix.SYS_LSETXATTR, text("/f"), text("user.x"), text("x")))
	}
}

// beside attempts to leave a scope and a history that are in one mount. The operations that a history needs are controls.
func beside(try func(what string, err error)) {
	try("own: history", openCreate(wire.HistoryFD, "kept"))
	try("own: relative", openCreate(unix.AT_FDCWD, "made"))
	try("own: rename", unix.Renameat2(wire.RootFD, "made", wire.HistoryFD, "moved", 0))
	try("own: link", unix.Linkat(wire.HistoryFD, "moved", wire.RootFD, "again", 0))
	try("own: mkdir", unix.Mkdirat(wire.RootFD, "dir", 0o700))
	try("own: rename a directory", unix.Renameat2(wire.RootFD, "dir", wire.HistoryFD, "dir", 0))
	from, err := unix.Openat2(wire.HistoryFD, "kept", &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC})
	try("own: open kept", err)
	to, err := unix.Openat2(wire.RootFD, "again", &unix.OpenHow{Flags: unix.O_WRONLY | unix.O_CLOEXEC})
	try("own: open again", err)
	if err = unix.IoctlFileClone(to, from); err == unix.EOPNOTSUPP { // the file system has no clones
		err = nil
	}
	try("own: clone", err)
	moved, err := unix.Openat2(wire.HistoryFD, "dir", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC})
	try("own: open dir", err)
	try("left: rename", unix.Renameat2(wire.RootFD, "again", wire.HistoryFD, "../stolen", 0))
	try("left: rename of all", unix.Renameat2(wire.HistoryFD, "../own", wire.HistoryFD, "own", 0))
	try("left: make", openCreate(wire.HistoryFD, "../made"))
	try("left: exchange", unix.Renameat2(wire.HistoryFD, "../../agents/other", wire.HistoryFD, "dir", unix.RENAME_EXCHANGE))
	for name, at := range map[string]int{"root": wire.RootFD, "history": wire.HistoryFD, "dir": moved, "working directory": unix.AT_FDCWD} {
		for up := ".."; len(up) < 40; up += "/.." {
			for _, rest := range []string{"", "/.", "/agents", "/agents/other", "/agents/other/FOREIGN",
				"/other/FOREIGN", "/history", "/history/other", "/etc/passwd", "/proc/1/root"} {
				for _, flags := range []uint64{unix.O_PATH, unix.O_RDONLY} {
					fmt.Printf("climb from %s %s %d: %s\n", name, up+rest, flags, reached(at, up+rest, flags))
				}
			}
		}
	}
}

// reached says what is at a path: own, which is the scope or the history; a cover, which is another mount; or what went wrong.
func reached(at int, path string, flags uint64) string {
	var st, own, root, history unix.Statx_t
	for fd, st := range map[int]*unix.Statx_t{wire.RootFD: &root, wire.HistoryFD: &history} {
		if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_MNT_ID, st); err != nil {
			return err.Error()
		}
	}
	own = root
	fd, err := unix.Openat2(at, path, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC})
	if err == nil {
		defer unix.Close(fd)
		err = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_MNT_ID, &st)
	} else if unix.Statx(at, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_MNT_ID, &st) == nil && st.Mnt_id == own.Mnt_id {
		err = nil // Landlock does not restrict statx(2)
	}
	switch {
	case err != nil:
		return unix.ErrnoName(err.(unix.Errno))
	case st.Mnt_id != own.Mnt_id:
		return "a cover"
	case st.Ino == root.Ino || st.Ino == history.Ino:
		return "own"
	}
	return "REACHED"
}

func openCreate(at int, name string) error {
	fd, err := unix.Openat2(at, name, &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY | unix.O_CLOEXEC, Mode: 0o600})
	if err == nil {
		unix.Close(fd)
	}
	return err
}
