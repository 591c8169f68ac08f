// Confined is a view process that an attacker has taken over. It confines
// itself as a view does, then attempts forbidden operations. For each attempt
// it prints a line with its name and the errno.
package main

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/view"
)

// foreignFD is a directory of the host, as if left open by mistake.
const foreignFD = view.WireFD + 1

func main() {
	watch, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_REPORT_DFID_NAME, unix.O_RDONLY)
	if err != nil {
		fmt.Println("no watch:", err)
	}
	means, err := view.Confine(view.RootFD, os.Args[1] == "passthrough", os.Args[1] == "caller", true)
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
	try("own: open", open(view.RootFD, "f", unix.O_RDWR))
	try("own: absolute", open(cwd, "/f", unix.O_RDONLY))
	try("own: create", openCreate(view.RootFD, "made"))
	// Files.
	for i, at := range []int{cwd, view.RootFD, view.FuseFD, view.WireFD} {
		for _, path := range []string{"/etc/passwd", "../../../../../../etc/passwd", "/proc/self/root/etc/passwd", "/proc/1/root/etc/passwd",
			"/proc/self/fd/6/FOREIGN", other, "/../" + other, "link", "up", "/link", "up/FOREIGN", "/dev/null"} {
			try(fmt.Sprintf("open %d %s", i, path), open(at, path, unix.O_RDONLY))
			try(fmt.Sprintf("path %d %s", i, path), open(at, path, unix.O_PATH))
		}
	}
	try("stat other", unix.Statx(cwd, other, 0, unix.STATX_ALL, &st))
	// The spool: it can be written to, and nothing else.
	_, err = unix.Write(view.SpoolFD, []byte("event"))
	try("own: spool", err)
	for _, high := range []uintptr{0, 1 << 32, 1 << 63} { // the kernel ignores the upper half of a descriptor
		fd := high | view.SpoolFD
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
	try("device", open(view.RootFD, "zero", unix.O_RDWR))
	// An open descriptor outside the scope: Landlock.
	try("left open: read", open(foreignFD, "FOREIGN", unix.O_RDONLY))
	try("left open: write", open(foreignFD, "FOREIGN", unix.O_WRONLY))
	try("left open: create", openCreate(foreignFD, "made"))
	try("left open: list", open(foreignFD, ".", unix.O_RDONLY|unix.O_DIRECTORY))
	try("left open: unlink", unix.Unlinkat(foreignFD, "FOREIGN", 0))
	try("left open: rename", unix.Renameat2(foreignFD, "FOREIGN", view.RootFD, "stolen", 0))
	try("left open: link", unix.Linkat(foreignFD, "FOREIGN", view.RootFD, "stolen", 0))
	try("left open: mkdir", unix.Mkdirat(foreignFD, "made", 0o755))
	// A watch may cover only the view's own directories.
	for what, flags := range map[string]uint{"file system": unix.FAN_MARK_FILESYSTEM, "mount": unix.FAN_MARK_MOUNT, "inode, plainly": 0} {
		try("call watch a "+what, unix.FanotifyMark(watch, unix.FAN_MARK_ADD|flags, unix.FAN_OPEN|unix.FAN_MODIFY, view.RootFD, "."))
	}
	// System calls, with arguments that are harmless without confinement. The
	// filter decides before the kernel checks the arguments.
	try("mknod", unix.Mknodat(view.RootFD, "dev", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
	for what, err := range map[string]error{
		"socket":      raw(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0),
		"inet":        raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0),
		"connect":     raw(unix.SYS_CONNECT, view.WireFD, 0, 0),
		"execve":      raw(unix.SYS_EXECVE, 0, 0, 0),
		"execveat":    raw(unix.SYS_EXECVEAT, view.RootFD, 0, 0),
		"clone":       raw(unix.SYS_CLONE, unix.CLONE_SIGHAND|uintptr(unix.SIGCHLD), 0, 0),
		"clone3":      raw(unix.SYS_CLONE3, 0, 0, 0),
		"mount":       raw(unix.SYS_MOUNT, 0, 0, 0),
		"umount":      raw(unix.SYS_UMOUNT2, 0, 0, 0),
		"fsopen":      raw(unix.SYS_FSOPEN, text("tmpfs"), 0, 0),
		"open_tree":   raw(unix.SYS_OPEN_TREE, view.RootFD, text(""), unix.AT_EMPTY_PATH),
		"move_mount":  raw(unix.SYS_MOVE_MOUNT, view.RootFD, 0, 0),
		"setns":       raw(unix.SYS_SETNS, view.WireFD, 0, 0),
		"unshare":     raw(unix.SYS_UNSHARE, 1, 0, 0),
		"chroot":      raw(unix.SYS_CHROOT, 0, 0, 0),
		"pivot_root":  raw(unix.SYS_PIVOT_ROOT, 0, 0, 0),
		"chdir":       raw(unix.SYS_CHDIR, text("/"), 0, 0),
		"ptrace":      raw(unix.SYS_PTRACE, unix.PTRACE_ATTACH, 0, 0),
		"vm_readv":    raw(unix.SYS_PROCESS_VM_READV, 1, 0, 0),
		"kill":        raw(unix.SYS_KILL, 1, 0, 0),
		"bpf":         raw(unix.SYS_BPF, 0, 0, 0),
		"io_uring":    raw(unix.SYS_IO_URING_SETUP, 1, 0, 0),
		"byhandle":    raw(unix.SYS_OPEN_BY_HANDLE_AT, view.RootFD, 0, 0),
		"prctl":       raw(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1, 0),
		"open":        raw(unix.SYS_OPEN, text("/f"), 0, 0),
		"openat":      raw(unix.SYS_OPENAT, view.RootFD, text("f"), 0),
		"ioctl":       raw(unix.SYS_IOCTL, view.RootFD, 0x80087601, 0),
		"setuid":      raw(unix.SYS_SETUID, 0, 0, 0),
		"capset":      raw(unix.SYS_CAPSET, 0, 0, 0),
		"reboot":      raw(unix.SYS_REBOOT, 0, 0, 0),
		"init_module": raw(unix.SYS_INIT_MODULE, 0, 0, 0),
		"keyctl":      raw(unix.SYS_KEYCTL, 0, 0, 0),
		"perf":        raw(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0),
		"swapon":      raw(unix.SYS_SWAPON, 0, 0, 0),
		"landlock":    raw(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 0),
		"xattr":       raw(unix.SYS_LSETXATTR, text("/f"), text("user.x"), text("x")),
	} {
		try("call "+what, err)
	}
}

func openCreate(at int, name string) error {
	fd, err := unix.Openat2(at, name, &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY | unix.O_CLOEXEC, Mode: 0o600})
	if err == nil {
		unix.Close(fd)
	}
	return err
}
