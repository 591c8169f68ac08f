package main

import (
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/seccomp"
)

// confine leaves this process the system calls for the files of the log and for its open connections: it executes nothing, makes no
// socket and signals nobody.
func confine() error {
	return seccomp.Only(seccomp.Calls(seccomp.Allow,
		unix.SYS_RECVMSG, // the channels of agents
		unix.SYS_OPENAT, unix.SYS_NEWFSTATAT, unix.SYS_FSTAT, unix.SYS_FSTATFS, unix.SYS_READLINKAT, unix.SYS_GETDENTS64,
		unix.SYS_LSEEK, unix.SYS_PWRITE64, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_FSYNC, unix.SYS_FDATASYNC,
		unix.SYS_FLOCK, unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT, unix.SYS_FCHMOD, unix.SYS_FCHMODAT,
		unix.SYS_UTIMENSAT,
		unix.SYS_COPY_FILE_RANGE, unix.SYS_SENDFILE, unix.SYS_SPLICE, // of io.Copy, which reads the version of the kernel first
		unix.SYS_UNAME,
		unix.SYS_GETUID, unix.SYS_GETEUID,
	), []seccomp.Rule{
		// The mount of an open directory.
		{Call: unix.SYS_STATX, Answer: seccomp.Allow, Uses: []seccomp.Use{{seccomp.Has(2, unix.AT_EMPTY_PATH)}}},
	})
}
