package sandbox

import (
	"encoding/binary"
	"fmt"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// absent are features that programs try and do without when the kernel does
// not have them (ENOSYS). clone3 is one because its flags cannot be inspected: a
// filter does not see what a pointer points to (seccomp(2)).
var absent = []string{
	"clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd",
	"add_key", "request_key", "keyctl", // keyrings are not of a namespace
	"fsopen", "fsconfig", "fsmount", "fspick", "move_mount", "open_tree", "open_tree_attr", "mount_setattr",
}

// refused are system calls that no tool needs and by which programs have left sandboxes (EPERM).
var refused = []string{
	"mount", "umount2", "pivot_root", "chroot", "setns",
	"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp",
	"bpf", "perf_event_open", "fanotify_init", "open_by_handle_at", "lookup_dcookie",
	"kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module",
	"create_module", "get_kernel_syms", "query_module",
	"quotactl", "quotactl_fd", "swapon", "swapoff", "reboot", "acct", "nfsservctl",
	"vhangup", "iopl", "ioperm", "modify_ldt", "uselib", "_sysctl", "syslog",
	"settimeofday", "clock_settime", "adjtimex", "clock_adjtime",
}

// lastKnown is the newest system call that these lists were written with in
// mind. A newer one does not exist, as on an older kernel. It also covers the
// x32 calls, whose numbers have bit 30 set.
const lastKnown = unix.SYS_LISTNS

// newNamespaces are the flags that make a namespace, for clone(2) and unshare(2).
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// filters returns the two seccomp programs of a sandbox, in the form that bwrap
// reads. The kernel runs both and takes the stricter answer. Neither says more
// than "no" to something: namespaces and capabilities confine, this makes the
// kernel behind them small.
func filters() ([][]byte, error) {
	list, err := listFilter()
	if err != nil {
		return nil, fmt.Errorf("seccomp list: %w", err)
	}
	guard, err := guardFilter()
	if err != nil {
		return nil, fmt.Errorf("seccomp guard: %w", err)
	}
	return [][]byte{assemble(list), assemble(guard)}, nil
}

// listFilter refuses by number alone. On a foreign architecture it answers its
// default, which allows: guardFilter has to come with it.
func listFilter() ([]bpf.RawInstruction, error) {
	info, err := arch.GetInfo("")
	if err != nil {
		return nil, err
	}
	here := func(names []string) (known []string) { // some are of amd64 only
		for _, name := range names {
			if _, ok := info.SyscallNames[name]; ok {
				known = append(known, name)
			}
		}
		return known
	}
	policy := seccomp.Policy{
		DefaultAction: seccomp.ActionAllow,
		Syscalls: []seccomp.SyscallGroup{
			{Names: here(absent), Action: seccomp.Action(fail(unix.ENOSYS))},
			{Names: here(refused), Action: seccomp.Action(fail(unix.EPERM))},
		},
	}
	program, err := policy.Assemble()
	if err != nil {
		return nil, err
	}
	return bpf.Assemble(program)
}

// guardFilter kills foreign architectures and looks at arguments. The kernel
// takes all of these as 32 bits wide, so the low word is what counts and the
// high one is ignored here as there; go-seccomp-bpf compares 64 bits, and
// garbage in the high word would pass (as CVE-2019-10063 did).
func guardFilter() ([]bpf.RawInstruction, error) {
	info, err := arch.GetInfo("")
	if err != nil {
		return nil, err
	}
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 4}, // seccomp_data.arch: int 0x80 differs
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(info.ID), SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		bpf.LoadAbsolute{Off: 0, Size: 4}, // seccomp_data.nr
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: lastKnown, SkipTrue: 1},
		bpf.RetConstant{Val: fail(unix.ENOSYS)},
	}
	program = append(program, on(unix.SYS_CLONE, noBits(0, newNamespaces))...)
	program = append(program, on(unix.SYS_UNSHARE, noBits(0, newNamespaces|unix.CLONE_NEWTIME))...)
	// Typing into the terminal of somebody else: ioctl_tty(2), ioctl_console(2).
	program = append(program, on(unix.SYS_IOCTL, none(1, unix.TIOCSTI, unix.TIOCLINUX))...)
	const perLinux32, addrNoRandomize, query = 0x8, 0x40000, 0xffffffff
	program = append(program, on(unix.SYS_PERSONALITY,
		only(0, unix.EPERM, 0, perLinux32, addrNoRandomize, query))...)
	program = append(program, on(unix.SYS_SOCKETPAIR, only(0, unix.EAFNOSUPPORT, unix.AF_UNIX))...)
	program = append(program, on(unix.SYS_SOCKET,
		only(0, unix.EAFNOSUPPORT, unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK))...)
	program = append(program, on(unix.SYS_SOCKET, []bpf.Instruction{ // netlink: route only
		arg(0), bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.AF_NETLINK, SkipTrue: 3},
		arg(2), bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.NETLINK_ROUTE, SkipTrue: 1},
		bpf.RetConstant{Val: fail(unix.EAFNOSUPPORT)},
	})...)
	// Init and our own processes in the sandbox have the user of the commands, and
	// prlimit(2) asks for no more than that: their limits would be the commands' to set.
	program = append(program, on(unix.SYS_PRLIMIT64, []bpf.Instruction{
		arg(0), bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 5}, // one's own
		arg(2), bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 2}, // a pointer to new limits
		argHigh(2), bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
		bpf.RetConstant{Val: fail(unix.EPERM)},
	})...)
	// Nor how init is scheduled.
	for _, nr := range []uint32{unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETATTR, unix.SYS_SCHED_SETAFFINITY} {
		program = append(program, on(nr, none(0, 1))...)
	}
	for _, nr := range []uint32{unix.SYS_SETPRIORITY, unix.SYS_IOPRIO_SET} { // which, who
		program = append(program, on(nr, none(1, 1))...)
	}
	program = append(program, on(unix.SYS_SETPRIORITY, none(0, unix.PRIO_USER))...)
	program = append(program, on(unix.SYS_IOPRIO_SET, none(0, ioprioWhoUser))...)
	program = append(program, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
	return bpf.Assemble(program)
}

const ioprioWhoUser = 3 // IOPRIO_WHO_USER, linux/ioprio.h

// on runs test for one system call; test returns or falls through.
func on(nr uint32, test []bpf.Instruction) []bpf.Instruction {
	return append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: nr, SkipTrue: uint8(len(test))},
	}, test...)
}

// noBits refuses an argument with any of the bits.
func noBits(n int, bits uint32) []bpf.Instruction {
	return []bpf.Instruction{
		arg(n),
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: bits, SkipTrue: 1},
		bpf.RetConstant{Val: fail(unix.EPERM)},
	}
}

// none refuses an argument that is one of the values.
func none(n int, values ...uint32) []bpf.Instruction {
	test := []bpf.Instruction{arg(n)}
	for _, v := range values {
		test = append(test, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: v, SkipTrue: 1},
			bpf.RetConstant{Val: fail(unix.EPERM)})
	}
	return test
}

// only refuses an argument that is none of the values.
func only(n int, errno unix.Errno, values ...uint32) []bpf.Instruction {
	test := []bpf.Instruction{arg(n)}
	for i, v := range values {
		test = append(test, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(len(values) - i)})
	}
	return append(test, bpf.RetConstant{Val: fail(errno)})
}

// arg loads the low word of argument n. Both our architectures are little-endian.
func arg(n int) bpf.Instruction { return bpf.LoadAbsolute{Off: uint32(16 + 8*n), Size: 4} }

// argHigh loads the high word of argument n, for those that are pointers.
func argHigh(n int) bpf.Instruction { return bpf.LoadAbsolute{Off: uint32(20 + 8*n), Size: 4} }

func fail(errno unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(errno) }

// assemble lays a program out as an array of struct sock_filter.
func assemble(program []bpf.RawInstruction) []byte {
	var b []byte
	for _, in := range program {
		b = binary.LittleEndian.AppendUint16(b, in.Op)
		b = append(b, in.Jt, in.Jf)
		b = binary.LittleEndian.AppendUint32(b, in.K)
	}
	return b
}
