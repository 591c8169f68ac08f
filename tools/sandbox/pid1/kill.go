package pid1

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// killSession kills the processes of a session and their descendants, whatever
// session those have made. It scans again until no new one appears: a process may
// fork during a scan. A descendant whose parent had ended before lives as long as
// the sandbox.
func killSession(id int) {
	tree := map[int]bool{}
	for range 100 {
		if !stopTree(id, tree) {
			break
		}
	}
	for pid := range tree {
		unix.Kill(pid, unix.SIGKILL)
	}
	killAll(id)
}

// stopTree stops the processes of a session and their descendants, and reports
// whether it found any that was not in the tree. A stopped process cannot fork, and
// stays the parent of its children.
func stopTree(id int, tree map[int]bool) (more bool) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return false
	}
	all := map[int]Stat{}
	for _, name := range names {
		pid, err := strconv.Atoi(name.Name())
		if err != nil || pid == 1 {
			continue
		}
		if s, err := ReadStat(pid); err == nil && s.State != 'Z' && s.State != 'X' {
			all[pid] = s
		}
	}
	for found := true; found; {
		found = false
		for pid, s := range all {
			if !tree[pid] && (s.session == id || tree[s.Parent]) {
				unix.Kill(pid, unix.SIGSTOP)
				tree[pid], found, more = true, true, true
			}
		}
	}
	return more
}

// killAll kills the processes of a session.
func killAll(id int) {
	for range 100 {
		unix.Kill(-id, unix.SIGKILL)
		names, err := os.ReadDir("/proc")
		if err != nil {
			return
		}
		alive := false
		for _, name := range names {
			pid, err := strconv.Atoi(name.Name())
			if err != nil || pid == 1 {
				continue
			}
			if s, err := ReadStat(pid); err == nil && s.session == id && s.State != 'Z' && s.State != 'X' {
				unix.Kill(pid, unix.SIGKILL)
				alive = true
			}
		}
		if !alive {
			return
		}
	}
}
