package confine

import "golang.org/x/sys/unix"

// oldFileCalls are fileCalls that only this architecture has.
var oldFileCalls = []uint32{unix.SYS_OPEN, unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_ACCESS, unix.SYS_READLINK, unix.SYS_TIME}
