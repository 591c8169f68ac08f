package view

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// groupsOf returns the supplementary groups of a process; proc_pid_status(5).
func groupsOf(pid uint32) ([]uint32, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		list, ok := strings.CutPrefix(line, "Groups:")
		if !ok {
			continue
		}
		groups := []uint32{}
		for _, f := range strings.Fields(list) {
			g, err := strconv.ParseUint(f, 10, 32)
			if err != nil {
				return nil, err
			}
			groups = append(groups, uint32(g))
		}
		return groups, nil
	}
	return nil, syscall.ESRCH
}

// viewCaps are the capabilities that a view is started with; it drops what it
// does not need when it has made the scope its root. It enters the scope whatever
// mode the directory has: CAP_DAC_READ_SEARCH.
var viewCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_DAC_READ_SEARCH}
