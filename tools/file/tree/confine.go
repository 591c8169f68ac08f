package tree

import (
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/seccomp"
)

// confine leaves this process the system calls for files: it executes nothing, has no socket, changes no owner and signals nobody. The
// sandbox confines it besides.
func confine() error {
	return seccomp.Only(seccomp.Calls(seccomp.Allow,
		unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_NEWFSTATAT, unix.SYS_FSTAT, unix.SYS_STATX, unix.SYS_READLINKAT,
		unix.SYS_GETDENTS64, unix.SYS_LSEEK, unix.SYS_PWRITE64, unix.SYS_FTRUNCATE, unix.SYS_FSYNC,
		unix.SYS_COPY_FILE_RANGE, unix.SYS_SENDFILE, unix.SYS_SPLICE, // of io.Copy, which reads the version of the kernel first
		unix.SYS_UNAME,
		unix.SYS_MKDIRAT, unix.SYS_SYMLINKAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT2, unix.SYS_FCHMOD, unix.SYS_FCHMODAT,
		unix.SYS_GETUID, unix.SYS_GETEUID,
	), []seccomp.Rule{
		{Call: unix.SYS_PRCTL, Answer: seccomp.Allow, Uses: seccomp.One(0, unix.PR_SET_NAME)}, // of the thread of a call
	})
}
