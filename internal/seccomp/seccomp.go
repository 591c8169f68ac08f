// Package seccomp builds filters of system calls, for our processes and for sandboxes, and loads them: seccomp(2).
//
// The kernel takes descriptors, flags and commands as 32 bits and ignores the upper half of their words. A Test compares the lower
// half, so that no other value with the same lower half passes it (CVE-2019-10063). [HighIsNot] is for pointers.
package seccomp

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Answer is what the kernel does with a system call: the value that a filter returns.
type Answer uint32

// The answers beside those of Fail.
const (
	Allow Answer = unix.SECCOMP_RET_ALLOW
	Kill  Answer = unix.SECCOMP_RET_KILL_PROCESS
)

// Fail makes a system call return an error.
func Fail(errno unix.Errno) Answer { return unix.SECCOMP_RET_ERRNO | Answer(errno) }

// Filter answers system calls.
type Filter struct {
	Rules   []Rule // the first that matches a call answers it
	Else    Answer // to calls without a rule
	Foreign Answer // to calls of other architectures

	// Last is the newest system call that the rules were written for. A newer one fails with ENOSYS, as on an older kernel, and so
	// does each of x32, whose numbers have bit 30 set. 0: no such bound.
	Last uint32
}

// Rule matches uses of one system call.
type Rule struct {
	Call   uint32 // unix.SYS_…
	Answer Answer
	Uses   []Use // it matches each of them; nil: all uses
}

// Use is a use of a system call for which all tests hold.
type Use []Test

// Test holds for some values of an argument.
type Test struct {
	offset uint32 // in struct seccomp_data
	jump   uint16 // BPF_JEQ or BPF_JSET
	value  uint32
	not    bool
}

// Is holds for one value of argument n.
func Is(n int, value uint32) Test { return Test{low(n), unix.BPF_JEQ, value, false} }

// IsNot holds for every other value of argument n.
func IsNot(n int, value uint32) Test { return Test{low(n), unix.BPF_JEQ, value, true} }

// HighIsNot is IsNot for the upper half of argument n.
func HighIsNot(n int, value uint32) Test { return Test{low(n) + 4, unix.BPF_JEQ, value, true} }

// Has holds if argument n has any of the bits.
func Has(n int, bits uint32) Test { return Test{low(n), unix.BPF_JSET, bits, false} }

// low is the offset of the lower half of argument n. Both our architectures are little-endian.
func low(n int) uint32 { return uint32(16 + 8*n) }

// Calls returns rules for all uses of system calls.
func Calls(answer Answer, calls ...uint32) []Rule {
	rules := make([]Rule, len(calls))
	for i, call := range calls {
		rules[i] = Rule{Call: call, Answer: answer}
	}
	return rules
}

// One returns the uses in which argument n has one of the values.
func One(n int, values ...uint32) []Use {
	uses := make([]Use, len(values))
	for i, value := range values {
		uses[i] = Use{Is(n, value)}
	}
	return uses
}

// None returns the uses in which argument n has none of the values.
func None(n int, values ...uint32) []Use {
	var use Use
	for _, value := range values {
		use = append(use, IsNot(n, value))
	}
	return []Use{use}
}

// Instructions of a filter. Its accumulator has the number of the call between two rules.
const (
	load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	above  = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
	jump   = unix.BPF_JMP | unix.BPF_JA
	answer = unix.BPF_RET | unix.BPF_K

	number       = 0 // offsets in struct seccomp_data
	architecture = 4
)

// Program returns the filter as the kernel runs it.
func (f Filter) Program() []unix.SockFilter {
	program := append(make([]unix.SockFilter, 0, 256),
		unix.SockFilter{Code: load, K: architecture},
		unix.SockFilter{Code: equal, K: Architecture, Jt: 1},
		unix.SockFilter{Code: answer, K: uint32(f.Foreign)},
		unix.SockFilter{Code: load, K: number})
	if f.Last > 0 {
		program = append(program,
			unix.SockFilter{Code: above, K: f.Last, Jf: 1},
			unix.SockFilter{Code: answer, K: uint32(Fail(unix.ENOSYS))})
	}
	for _, rule := range f.Rules {
		program = rule.append(program)
	}
	return append(program, unix.SockFilter{Code: answer, K: uint32(f.Else)})
}

// append tests the number first: so the kernel knows which calls are allowed whatever their arguments are, and runs no filter for
// them (seccomp_is_const_allow, kernel/seccomp.c).
func (r Rule) append(program []unix.SockFilter) []unix.SockFilter {
	if r.Uses == nil {
		return append(program, unix.SockFilter{Code: equal, K: r.Call, Jf: 1}, unix.SockFilter{Code: answer, K: uint32(r.Answer)})
	}
	program = append(program, unix.SockFilter{Code: equal, K: r.Call, Jt: 1}, unix.SockFilter{Code: jump})
	begin := len(program)
	for _, use := range r.Uses {
		program = use.append(program, r.Answer)
	}
	program = append(program, unix.SockFilter{Code: load, K: number})
	program[begin-1].K = uint32(len(program) - begin)
	return program
}

// append appends the answer, which is passed over if a test does not hold.
func (u Use) append(program []unix.SockFilter, a Answer) []unix.SockFilter {
	for i, test := range u {
		over := uint8(2*(len(u)-1-i) + 1)
		compare := unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | test.jump, K: test.value, Jf: over}
		if test.not {
			compare.Jt, compare.Jf = compare.Jf, 0
		}
		program = append(program, unix.SockFilter{Code: load, K: test.offset}, compare)
	}
	return append(program, unix.SockFilter{Code: answer, K: uint32(a)})
}

// Bytes returns the filter as an array of struct sock_filter, which bubblewrap reads.
func (f Filter) Bytes() (text []byte) {
	for _, in := range f.Program() {
		text = binary.LittleEndian.AppendUint16(text, in.Code)
		text = append(text, in.Jt, in.Jf)
		text = binary.LittleEndian.AppendUint32(text, in.K)
	}
	return text
}

// Load makes the filter hold for this process, on all threads and for good, with no_new_privs.
func (f Filter) Load() error {
	program := f.Program()
	all := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("seccomp: %w", os.NewSyscallError("prctl", err))
	}
	const flags = unix.SECCOMP_FILTER_FLAG_TSYNC
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&all)))
	switch {
	case errno != 0:
		return fmt.Errorf("seccomp: %w", errno)
	case thread != 0:
		return fmt.Errorf("seccomp: thread %d has a filter of its own", thread)
	}
	return nil
}

// Only leaves this process the system calls that rules allow, and those of the Go runtime. Every other fails with EPERM, as do those
// of other architectures: a process does not end by its own filter.
func Only(rules ...[]Rule) error {
	return Filter{Rules: slices.Concat(append(rules, Runtime())...), Else: Fail(unix.EPERM), Foreign: Fail(unix.EPERM)}.Load()
}

// Runtime returns rules for the Go runtime, and for package os on open files. The first rule for a call counts: rules before these may
// deny uses, or allow more.
func Runtime() []Rule {
	// Threads, not processes: runtime/os_linux.go.
	const thread = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_SYSVSEM | unix.CLONE_THREAD
	// Those of the C library in a program with cgo, as one that looks for races; it asks clone3 first: pthread_create(3).
	const library = thread | unix.CLONE_SETTLS | unix.CLONE_PARENT_SETTID | unix.CLONE_CHILD_CLEARTID
	return append(Calls(Allow,
		unix.SYS_BRK, unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOSE, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL,
		unix.SYS_EPOLL_PWAIT, unix.SYS_PPOLL, unix.SYS_EVENTFD2, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_FUTEX, unix.SYS_GETPID,
		unix.SYS_GETTID, unix.SYS_MADVISE, unix.SYS_MINCORE, unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_NANOSLEEP,
		unix.SYS_PREAD64, unix.SYS_READ, unix.SYS_RESTART_SYSCALL, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK,
		unix.SYS_RT_SIGRETURN, unix.SYS_SCHED_GETAFFINITY, unix.SYS_SCHED_YIELD, unix.SYS_SETITIMER, unix.SYS_SIGALTSTACK,
		unix.SYS_TGKILL, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_DELETE, unix.SYS_TIMER_SETTIME, unix.SYS_WRITE, unix.SYS_GETRANDOM,
		unix.SYS_RSEQ, unix.SYS_SET_ROBUST_LIST,
	), Rule{unix.SYS_CLONE, Allow, One(0, thread, thread|unix.CLONE_SETTLS, library)}, Rule{Call: unix.SYS_CLONE3, Answer: Fail(unix.ENOSYS)},
		// Not F_SETOWN and F_SETSIG, by which the kernel signals other processes, nor leases and locks.
		Fcntl(unix.F_DUPFD, unix.F_DUPFD_CLOEXEC, unix.F_GETFD, unix.F_SETFD, unix.F_GETFL, unix.F_SETFL))
}

// Fcntl returns a rule that allows commands of fcntl(2).
func Fcntl(commands ...uint32) Rule { return Rule{unix.SYS_FCNTL, Allow, One(1, commands...)} }
