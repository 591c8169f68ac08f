package sandbox

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/seccomp"
)

// absent are features that programs try and do without when the kernel does
// not have them (ENOSYS). clone3 is one because its flags cannot be inspected: a
// filter does not see what a pointer points to (seccomp(2)).
var absent = []uint32{
	unix.SYS_CLONE3, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_USERFAULTFD,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, // keyrings are not of a namespace
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE,
	unix.SYS_OPEN_TREE_ATTR, unix.SYS_MOUNT_SETATTR,
}

// refused are system calls that no tool needs and by which programs have left sandboxes (EPERM).
var refused = []uint32{
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_SETNS, unix.SYS_PTRACE,
	unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_FANOTIFY_INIT, unix.SYS_OPEN_BY_HANDLE_AT,
	unix.SYS_LOOKUP_DCOOKIE,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE,
	unix.SYS_DELETE_MODULE,
	unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_REBOOT, unix.SYS_ACCT,
	unix.SYS_NFSSERVCTL,
	unix.SYS_VHANGUP, unix.SYS_SYSLOG, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_ADJTIMEX,
	unix.SYS_CLOCK_ADJTIME,
}

// lastKnown is the newest system call that these lists were written with in
// mind.
const lastKnown = unix.SYS_LISTNS

// newNamespaces are the flags that make a namespace, for clone(2) and unshare(2).
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// filter returns the filter of a sandbox. It says no more than "no" to something: namespaces and capabilities confine, this makes
// the kernel behind them small. Init has it as well: every command inherits the filters of process 1, so that init can have none
// that a command could not do with.
func filter() seccomp.Filter {
	deny := func(call uint32, errno unix.Errno, uses []seccomp.Use) seccomp.Rule {
		return seccomp.Rule{Call: call, Answer: seccomp.Fail(errno), Uses: uses}
	}
	refuse := func(call uint32, uses ...seccomp.Use) seccomp.Rule { return deny(call, unix.EPERM, uses) }
	const perLinux32, addrNoRandomize, query = 0x8, 0x40000, 0xffffffff
	rules := slices.Concat(
		seccomp.Calls(seccomp.Fail(unix.ENOSYS), absent...),
		seccomp.Calls(seccomp.Fail(unix.EPERM), refused...),
		seccomp.Calls(seccomp.Fail(unix.EPERM), refusedHere...),
		[]seccomp.Rule{
			refuse(unix.SYS_CLONE, seccomp.Use{seccomp.Has(0, newNamespaces)}),
			refuse(unix.SYS_UNSHARE, seccomp.Use{seccomp.Has(0, newNamespaces|unix.CLONE_NEWTIME)}),
			// Typing into the terminal of somebody else: ioctl_tty(2), ioctl_console(2).
			refuse(unix.SYS_IOCTL, seccomp.One(1, unix.TIOCSTI, unix.TIOCLINUX)...),
			refuse(unix.SYS_PERSONALITY, seccomp.None(0, 0, perLinux32, addrNoRandomize, query)...),
			deny(unix.SYS_SOCKETPAIR, unix.EAFNOSUPPORT, seccomp.None(0, unix.AF_UNIX)),
			deny(unix.SYS_SOCKET, unix.EAFNOSUPPORT, append(
				seccomp.None(0, unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK),
				seccomp.Use{seccomp.Is(0, unix.AF_NETLINK), seccomp.IsNot(2, unix.NETLINK_ROUTE)})),
			// Init and our own processes in the sandbox have the user of the commands, and prlimit(2) asks for no more than that:
			// their limits would be the commands' to set. Argument 2 is a pointer to new limits.
			refuse(unix.SYS_PRLIMIT64, seccomp.Use{seccomp.IsNot(0, 0), seccomp.IsNot(2, 0)},
				seccomp.Use{seccomp.IsNot(0, 0), seccomp.HighIsNot(2, 0)}),
			// Nor how init is scheduled.
			refuse(unix.SYS_SCHED_SETSCHEDULER, seccomp.One(0, 1)...),
			refuse(unix.SYS_SCHED_SETPARAM, seccomp.One(0, 1)...),
			refuse(unix.SYS_SCHED_SETATTR, seccomp.One(0, 1)...),
			refuse(unix.SYS_SCHED_SETAFFINITY, seccomp.One(0, 1)...),
			refuse(unix.SYS_SETPRIORITY, append(seccomp.One(1, 1), seccomp.One(0, unix.PRIO_USER)...)...), // which, who
			refuse(unix.SYS_IOPRIO_SET, append(seccomp.One(1, 1), seccomp.One(0, ioprioWhoUser)...)...),
		})
	return seccomp.Filter{Rules: rules, Else: seccomp.Allow, Foreign: seccomp.Kill, Last: lastKnown}
}

const ioprioWhoUser = 3 // IOPRIO_WHO_USER, linux/ioprio.h
