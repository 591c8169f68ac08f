package pid1

import (
	"maps"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/proc"
)

// scans bounds the scans for processes to stop, and those for processes that have not ended.
const scans = 100

// killSession kills the processes of a session and their descendants, whatever
// session those have made. It stops them first: a stopped process stays the parent of its children. It scans again until no new one
// appears, and after the kill until none is left: a process may fork during a scan. A descendant whose parent had ended before
// lives as long as the sandbox.
func killSession(id int) {
	tree := map[int]bool{}
	for i := range 2 * scans {
		if more := stopTree(id, tree); more && i < scans {
			continue
		}
		if len(tree) == 0 {
			return
		}
		for pid := range tree {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// stopTree stops the processes of a session and their descendants that are not in the tree, adds them, and reports
// whether there are any. It removes those that have ended.
func stopTree(id int, tree map[int]bool) (more bool) {
	all := map[int]proc.Stat{}
	for _, pid := range proc.Processes() {
		if s, err := proc.ReadStat(pid); err == nil && pid != 1 && !s.Ended() {
			all[pid] = s
		}
	}
	maps.DeleteFunc(tree, func(pid int, _ bool) bool { return all[pid].State == 0 })
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
