package view

import (
	"cmp"
	"strconv"
	"syscall"

	"github.com/scopefs/scopefs/internal/proc"
	"golang.org/x/sys/unix"
)

// groupsOf returns the supplementary groups of a process; proc_pid_status(5).
func groupsOf(pid uint32) ([]uint32, error) {
	status, err := proc.ReadTable(int(pid), "status")
	words := status.Words("Groups")
	if err != nil || words == nil {
		return nil, cmp.Or(err, error(syscall.ESRCH))
	}
	groups := []uint32{}
	for _, word := range words {
		g, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return nil, err
		}
		groups = append(groups, uint32(g))
	}
	return groups, nil
}

// viewCaps are the capabilities that a view is started with; it drops what it
// does not need when it has made the scope its root. It enters the scope whatever
// mode the directory has: CAP_DAC_READ_SEARCH. With a history it calls chroot(2).
func viewCaps(history bool) []uintptr {
	caps := []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_DAC_READ_SEARCH}
	if history {
		caps = append(caps, unix.CAP_SYS_CHROOT)
	}
	return caps
}
