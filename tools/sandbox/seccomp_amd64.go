package sandbox

import "golang.org/x/sys/unix"

// refusedHere are calls like refused that only this architecture has.
var refusedHere = []uint32{
	unix.SYS_CREATE_MODULE, unix.SYS_GET_KERNEL_SYMS, unix.SYS_QUERY_MODULE, unix.SYS_IOPL, unix.SYS_IOPERM,
	unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS__SYSCTL,
}
