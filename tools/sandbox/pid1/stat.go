package pid1

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Stat holds fields of /proc/PID/stat (proc_pid_stat(5)).
type Stat struct {
	State               byte
	Parent              int
	session, foreground int
	Start               int // in ticks since the host booted
}

// ReadStat reads the fields of a process by its number in the caller's pid namespace.
func ReadStat(pid int) (Stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Stat{}, err
	}
	// The second field is the name, in parentheses, and may hold any character.
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(f) < 20 {
		return Stat{}, unix.EIO
	}
	s := Stat{State: f[0][0]}
	for i, field := range map[int]*int{1: &s.Parent, 3: &s.session, 5: &s.foreground, 19: &s.Start} {
		if *field, err = strconv.Atoi(f[i]); err != nil {
			return Stat{}, err
		}
	}
	return s, nil
}
