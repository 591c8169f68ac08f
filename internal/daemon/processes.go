package daemon

import (
	"os"
	"strconv"
	"strings"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/proc"
)

// process is one of the host.
type process struct {
	api.Use
	name     string
	children []int
	asked    bool // Written is known
}

// processTable has processes by their ids.
type processTable map[int]*process

// readProcesses reads the host's processes. One that ends meanwhile may be missing.
func readProcesses() processTable {
	all := processTable{}
	parents := map[int]int{}
	for _, pid := range proc.Processes() {
		s, err := proc.ReadStat(pid)
		if err != nil {
			continue
		}
		p := &process{name: s.Name}
		p.CPU = float64(s.User+s.System+s.ChildUser+s.ChildSystem) / 100
		p.Memory, p.Processes = int64(s.Memory)*int64(os.Getpagesize()), 1
		all[pid], parents[pid] = p, s.Parent
	}
	for pid, parent := range parents {
		if p := all[parent]; p != nil {
			p.children = append(p.children, pid)
		}
	}
	return all
}

// written returns write_bytes of proc_pid_io(5); 0 for a process that has ended, or that this
// process may not look at.
func written(pid int) int64 {
	io, _ := proc.ReadTable(pid, "io")
	n, _ := strconv.ParseInt(strings.Join(io.Words("write_bytes"), ""), 10, 64)
	return n
}

// processTotal is the use of processes, and the name of the one that used the processor most.
type processTotal struct {
	api.Use
	Busiest string
	most    float64
}

// below returns the use of a process and of all below it, with what they have written, or without: a view that is not passed
// through writes the same data once more. An agent makes its tree of any depth, and a reused number could make a loop.
func (t processTable) below(pid int, writes bool) (sum processTotal) {
	seen := map[int]bool{0: true}
	for left := []int{pid}; len(left) > 0; {
		next := left[len(left)-1]
		left = left[:len(left)-1]
		p := t[next]
		if p == nil || seen[next] {
			continue
		}
		seen[next] = true
		if writes && !p.asked {
			p.asked, p.Written = true, written(next)
		}
		sum.Use.Add(p.Use)
		if next != pid && p.CPU >= sum.most && len(p.children) == 0 {
			sum.Busiest, sum.most = p.name, p.CPU
		}
		left = append(left, p.children...)
	}
	return sum
}
