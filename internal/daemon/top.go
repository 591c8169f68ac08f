package daemon

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/api"
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
	t := api.Top{Time: began, Agents: []api.TopAgent{}, Sessions: []api.TopSession{}, Approvals: []approvals.Approval{},
		Calls: []api.TopCall{}, Totals: api.Totals(d.counted.Totals()), Fleet: d.Settings.Fleet.NATS != ""}
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
				t.Sessions = append(t.Sessions, api.TopSession{Session: s, Use: use.Use, Program: use.Busiest})
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
	t.processes = readProcesses()
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
