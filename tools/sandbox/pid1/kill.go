package pid1

import (
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/proc"
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
	all := map[int]proc.Stat{}
	for _, pid := range proc.Processes() {
		if s, err := proc.ReadStat(pid); err == nil && pid != 1 && !s.Ended() {
			all[pid] = s
		}
	}
	for found := true; found; {
		found = false
		for pid, s := range all {
			if !tree[pid] && (s.Session == id || tree[s.Parent]) {
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
		alive := false
		for _, pid := range proc.Processes() {
			if s, err := proc.ReadStat(pid); err == nil && pid != 1 && s.Session == id && !s.Ended() {
				unix.Kill(pid, unix.SIGKILL)
				alive = true
			}
		}
		if !alive {
			return
		}
	}
}
