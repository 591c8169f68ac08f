package serve

import (
	"fmt"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/privileges"
	"github.com/scopefs/scopefs/internal/seccomp"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Needs says what a view process uses after Confine.
type Needs struct {
	Passthrough bool // kernel passthrough of file data
	Caller      bool // identity: caller
	Spool       bool // wire.SpoolFD, to write to

	// History and Mount are the descriptors of the agent's history and of the detached mount that holds it and the scope:
	// see mounts.Pair. 0 means that the scope is a mount of its own.
	History, Mount int

	Commit bool // takes changes over
}

// Confine irrevocably drops everything that serving a view does not need: files
// outside the scope and the history, capabilities, the network, executing
// programs, and all system calls except a short list. root is a detached mount of
// the scope's directory, or the scope's directory in needs.Mount. Confine returns
// the measures in effect, for the log, and closes needs.Mount. On an error the
// process must exit. Confine works only in a static binary, because Go cannot
// change the threads of C libraries.
func Confine(root int, needs Needs) ([]string, error) {
	where, err := enterFor(root, needs)
	if err != nil {
		return nil, err
	}
	kept, err := keepCapabilities(needs.Passthrough, needs.Caller)
	if err != nil {
		return nil, err
	}
	dirs := []string{"/"}
	if needs.History != 0 {
		dirs = append(dirs, ".")
	}
	abi, err := landlockDirs(dirs...)
	if err != nil {
		return nil, err
	}
	if err := filterCalls(needs); err != nil {
		return nil, err
	}
	return []string{where, "capabilities: " + kept, abi, "seccomp", "no_new_privs", "no network"}, nil
}

// enterFor makes the scope the root, and with a history the history the working directory. It returns what it did.
func enterFor(root int, needs Needs) (string, error) {
	if needs.History == 0 {
		return "root: the scope", enter(root)
	}
	err := enter(needs.Mount)
	if err == nil {
		err = enterBeside(root, needs.History, needs.Mount)
	}
	return "root: the scope, beside the history", err
}

// enter makes the scope the root of this mount namespace, and its only mount:
// pivot_root(2) with "." for both arguments.
func enter(root int) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount the scope: %w", err)
	}
	if err := unix.Fchdir(root); err != nil {
		return fmt.Errorf("enter the scope: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("make the scope the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's root: %w", err)
	}
	return unix.Chdir("/")
}

// callerCaps are the capabilities needed to act as any caller, including root.
const callerCaps = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE |
	1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID

// keepCapabilities drops all capabilities that the view does not need, on every
// thread. It also makes the process undumpable, so that other processes of the
// same user cannot use ptrace(2) or /proc on it.
func keepCapabilities(passthrough, caller bool) (string, error) {
	var keep uint32
	kept := "none"
	if passthrough {
		// FUSE passthrough requires CAP_SYS_ADMIN (fs/fuse/backing.c). The
		// seccomp filter denies its other uses.
		keep, kept = 1<<unix.CAP_SYS_ADMIN, "SYS_ADMIN"
	}
	if caller {
		keep, kept = keep|callerCaps, kept+" and those of identity: caller"
	}
	if err := privileges.Drop(keep); err != nil {
		return "", err
	}
	return kept, nil
}

// landlockDirs restricts file access to what is in the directories, with the
// newest Landlock ABI of this kernel: landlock(7).
func landlockDirs(dirs ...string) (string, error) {
	all, abi, err := privileges.Landlocked()
	if err != nil {
		return "", err
	}
	if abi < privileges.RenameABI {
		// Only the root, the filter and the capabilities confine the process.
		return "landlock: ABI 1, not used", privileges.NoNewPrivs()
	}
	if err := all.Restrict(landlock.RWDirs(dirs...).WithRefer()); err != nil {
		return "", fmt.Errorf("landlock: %w", err)
	}
	return fmt.Sprintf("landlock: ABI %d", abi), privileges.NoNewPrivs()
}

// filterCalls allows the system calls of the Go runtime and of a view, on all
// threads. Other calls, including those of other architectures, return EPERM.
func filterCalls(needs Needs) error {
	var rules []seccomp.Rule
	if needs.Spool {
		for _, call := range spoolCalls {
			rules = append(rules, seccomp.Rule{Call: call, Answer: seccomp.Fail(unix.EPERM), Uses: seccomp.One(0, wire.SpoolFD)})
		}
	}
	rules = append(rules, seccomp.Calls(seccomp.Allow, viewCalls...)...)
	if needs.Commit { // many staged files at once
		rules = append(rules, seccomp.Calls(seccomp.Allow, unix.SYS_SYNCFS)...)
	}
	if needs.Commit || needs.History != 0 { // see beneath.File.Unwritten
		rules = append(rules, seccomp.Fcntl(unix.F_SETLEASE))
	}
	if needs.Caller {
		rules = append(rules, seccomp.Calls(seccomp.Allow, unix.SYS_SETFSUID, unix.SYS_SETFSGID, unix.SYS_SETGROUPS)...)
	}
	if !beneath.XattrsAt() { // a thread that does the same by its working directory: see beneath.Name
		rules = append(rules, seccomp.Calls(seccomp.Allow, unix.SYS_FCHDIR, unix.SYS_LGETXATTR, unix.SYS_LSETXATTR, unix.SYS_LLISTXATTR,
			unix.SYS_LREMOVEXATTR, unix.SYS_GETGROUPS)...)
		rules = append(rules, seccomp.Rule{Call: unix.SYS_UNSHARE, Answer: seccomp.Allow, Uses: seccomp.One(0, unix.CLONE_FS)})
	}
	ioctls := []uint32{backingOpen, backingClose}
	if needs.History != 0 {
		ioctls = append(ioctls, unix.FICLONE) // shares data between files of a file system: ioctl_ficlone(2)
	}
	return seccomp.Only(append(rules,
		seccomp.Rule{Call: unix.SYS_IOCTL, Answer: seccomp.Allow, Uses: seccomp.One(1, ioctls...)},
		// Marks of inodes only. A mark of a mount or a file system
		// would report names from the whole host.
		seccomp.Rule{Call: unix.SYS_FANOTIFY_MARK, Answer: seccomp.Allow, Uses: seccomp.One(1, beneath.WatchFlags...)},
		seccomp.Rule{Call: unix.SYS_NAME_TO_HANDLE_AT, Answer: seccomp.Allow, Uses: seccomp.One(4, beneath.HandleFlags...)},
	))
}

const (
	// FUSE_DEV_IOC_BACKING_OPEN and _CLOSE, linux/fuse.h.
	backingOpen  = 0x4010e501
	backingClose = 0x4004e502
)

var viewCalls = []uint32{
	unix.SYS_FLOCK, unix.SYS_OPENAT2, unix.SYS_STATX, unix.SYS_FSTAT, unix.SYS_FSTATFS, unix.SYS_READLINKAT,
	unix.SYS_GETDENTS64, unix.SYS_LSEEK, unix.SYS_MKDIRAT, unix.SYS_MKNODAT, unix.SYS_SYMLINKAT, unix.SYS_LINKAT,
	unix.SYS_UNLINKAT, unix.SYS_RENAMEAT2, unix.SYS_PWRITE64, unix.SYS_PWRITEV2, unix.SYS_READV, unix.SYS_WRITEV,
	unix.SYS_PREADV, unix.SYS_PWRITEV, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_COPY_FILE_RANGE,
	unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWNAT,
	unix.SYS_UTIMENSAT, unix.SYS_FGETXATTR, unix.SYS_FSETXATTR, unix.SYS_FLISTXATTR, unix.SYS_FREMOVEXATTR,
	unix.SYS_GETXATTRAT, unix.SYS_SETXATTRAT, unix.SYS_LISTXATTRAT, unix.SYS_REMOVEXATTRAT, unix.SYS_RECVMSG,
	unix.SYS_SENDMSG, unix.SYS_FACCESSAT2,
}

// spoolCalls are denied on wire.SpoolFD. With them a compromised view could take back, or overwrite, what is in its spool and not
// yet in the log: clear O_APPEND, truncate, write without it (RWF_NOAPPEND), punch a hole.
var spoolCalls = []uint32{
	unix.SYS_FCNTL, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_PWRITE64, unix.SYS_PWRITEV, unix.SYS_PWRITEV2,
	unix.SYS_WRITEV,
}
