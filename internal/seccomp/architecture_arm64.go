package seccomp

import "golang.org/x/sys/unix"

// Architecture is that of our system calls, by the kernel's number: linux/audit.h.
const Architecture = unix.AUDIT_ARCH_AARCH64
