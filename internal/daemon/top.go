package daemon

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/proc"
	"github.com/scopefs/scopefs/tools/approvals"
)

// top answers all clients of a second with one look at the host. Nothing is recorded under mu.
type top struct {
	mu   sync.Mutex
	last api.Top

	processes processTable  // at last.Used
	took      time.Duration // of processor, to read them
}

// topTime is how old an answer may be.
const topTime = time.Second

// In a cheap answer what processes use is old: reading them takes at most a part of a processor, and they are as old as
// usedTime at most.
const (
	usedPart = 200
	usedTime = 10 * time.Second
)

// Top returns what runs now. It reads the list of the host's processes once, and asks no
// view: it takes about 60 µs for each process on a loaded machine. A cheap answer reads them
// seldom: see api.Client.TopCheap.
func (d *Daemon) Top(cheap bool) api.Top {
	list := d.Approvals.List() // before the lock: it records what has expired
	proposed := d.proposed()   // likewise: it reads files
	d.top.mu.Lock()
	defer d.top.mu.Unlock()
	now := &d.top
	used := topTime
	if cheap {
		used = min(max(topTime, usedPart*now.took), usedTime)
	}
	if time.Since(now.last.Time) < topTime && time.Since(now.last.Used) < used {
		return now.last
	}
	began := time.Now()
	if time.Since(now.last.Used) >= used {
		now.read()
	}
	t := api.Top{Time: began, Agents: []api.TopAgent{}, Sessions: []api.TopSession{}, Approvals: []approvals.Approval{}, Calls: []api.TopCall{}, Totals: api.Totals(d.counted.Totals())}
	t.Used, t.Proposals = now.last.Used, proposed
	all := now.processes
	for _, a := range d.Agents() {
		agent := api.TopAgent{ID: a.ID, State: a.State, Error: a.Error, Disk: a.Disk, Use: all.below(a.ViewPID, false).Use}
		if found := d.agent(a.ID); found != nil {
			counts := found.Counts()
			agent.Denials, agent.Calls, agent.Running = counts.Denials, counts.Calls, counts.Running
			agent.Open = counts.Open
			for _, c := range counts.InFlight {
				t.Calls = append(t.Calls, api.TopCall{ID: c.ID, Agent: a.ID, Session: c.Session, Tool: c.Tool, Chain: c.Chain, Since: c.Since})
			}
			for _, s := range found.Sessions() {
				use := all.below(s.PID, true)
				agent.Use.Add(use.Use)
				t.Sessions = append(t.Sessions, api.TopSession{Session: s, Use: use.Use, Program: use.busiest})
			}
		}
		t.Agents = append(t.Agents, agent)
	}
	for _, p := range list {
		if p.State == approvals.Waits {
			t.Approvals = append(t.Approvals, p.Brief())
		}
	}
	t.Disks = disks(d.Paths.Base, d.Paths.State)
	now.last = t
	return t
}

// read reads the host's processes. The caller holds mu.
func (t *top) read() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := spent()
	t.last.Used = time.Now()
	t.processes = processes()
	t.took = spent() - before
}

// spent returns the processor time of this thread.
func spent() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &u) // cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// disks returns the file systems of directories, each once.
func disks(dirs ...string) (list []api.Disk) {
	var seen []unix.Fsid
	for _, dir := range dirs {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) != nil || slices.Contains(seen, fs.Fsid) {
			continue
		}
		seen = append(seen, fs.Fsid)
		list = append(list, api.Disk{Path: dir, Free: fs.Bavail * uint64(fs.Bsize), Size: fs.Blocks * uint64(fs.Bsize)})
	}
	return list
}

// process is one of the host.
type process struct {
	api.Use
	name     string
	children []int
	asked    bool // Written is known
}

type processTable map[int]*process

// processes reads the host's processes. One that ends meanwhile may be missing.
func processes() processTable {
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

// total is the use of processes, and the name of the one that used the processor most.
type total struct {
	api.Use
	busiest string
	most    float64
}

// below returns the use of a process and of all below it, with what they have written, or without: a view that is not passed
// through writes the same data once more. An agent makes its tree of any depth, and a reused number could make a loop.
func (t processTable) below(pid int, writes bool) (sum total) {
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
			sum.busiest, sum.most = p.name, p.CPU
		}
		left = append(left, p.children...)
	}
	return sum
}
