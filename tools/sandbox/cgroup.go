package sandbox

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
)

// extraPIDs are bwrap and the threads of init, which are not the agent's.
const extraPIDs = 16

// cgroups is where control groups of sessions can be made: in one directory for
// all controllers (v2), or in one for each (v1). The kernel has each controller in
// one of the two (cgroups(7)).
type cgroups struct {
	v2   []string          // where it may be had, best first
	v1   map[string]string // directory by controller
	last *atomic.Uint64
}

// setting is one file of a control group. An optional one may not exist: swap
// is not accounted on every kernel.
type setting struct {
	controller, file, value string
	optional                bool
}

const cpuPeriod = 100_000 // microseconds

func (l Limits) v2() (s []setting) {
	if l.Memory > 0 {
		s = append(s, setting{"memory", "memory.max", strconv.FormatInt(l.Memory, 10), false},
			setting{"memory", "memory.swap.max", "0", true})
	}
	if l.PIDs > 0 {
		s = append(s, setting{"pids", "pids.max", strconv.Itoa(l.PIDs + extraPIDs), false})
	}
	if l.CPU > 0 {
		s = append(s, setting{"cpu", "cpu.max", fmt.Sprintf("%d %d", cpuQuota(l.CPU), cpuPeriod), false})
	}
	return s
}

func (l Limits) v1() (s []setting) {
	if l.Memory > 0 {
		s = append(s, setting{"memory", "memory.limit_in_bytes", strconv.FormatInt(l.Memory, 10), false},
			setting{"memory", "memory.memsw.limit_in_bytes", strconv.FormatInt(l.Memory, 10), true})
	}
	if l.PIDs > 0 {
		s = append(s, setting{"pids", "pids.max", strconv.Itoa(l.PIDs + extraPIDs), false})
	}
	if l.CPU > 0 {
		s = append(s, setting{"cpu", "cpu.cfs_period_us", strconv.Itoa(cpuPeriod), false},
			setting{"cpu", "cpu.cfs_quota_us", strconv.Itoa(cpuQuota(l.CPU)), false})
	}
	return s
}

// cpuQuota is how much of a period; the kernel takes no less than a millisecond.
func cpuQuota(cpu float64) int { return max(int(cpu*cpuPeriod), 1000) }

// group is the control group of one session; nil when nothing is limited.
type group struct {
	version string
	dirs    []string
}

func (g *group) kind() string {
	if g == nil {
		return "none"
	}
	return "cgroup " + g.version
}

// newGroup makes a group with the limits, or fails: a limit that cannot be
// enforced is an error before anything runs.
func (c *cgroups) newGroup(agent scope.ID, l Limits) (*group, error) {
	g, settings := &group{version: "v2"}, l.v2()
	if len(settings) == 0 {
		return nil, nil
	}
	v2 := c.findV2(settings)
	base := func(string) string { return v2 }
	if v2 == "" {
		g.version, settings = "v1", l.v1()
		base = func(controller string) string { return c.v1[controller] }
	}
	name := fmt.Sprintf("scopefs-%d-%d-%s", os.Getpid(), c.last.Add(1), agent)
	for _, s := range settings {
		if err := g.set(base(s.controller), name, s); err != nil {
			return nil, errors.Join(&MissingError{
				fmt.Sprintf("limits: no control group for %s (%v)", s.controller, err),
				"run the daemon as root, or as a systemd service with Delegate=yes DelegateSubgroup=" + daemonGroup,
			}, g.remove())
		}
	}
	return g, nil
}

func (g *group) set(base, name string, s setting) error {
	if base == "" {
		return unix.ENOENT
	}
	dir := filepath.Join(base, name)
	if !slices.Contains(g.dirs, dir) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		g.dirs = append(g.dirs, dir)
	}
	err := writeFile(filepath.Join(dir, s.file), s.value)
	if s.optional && errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// add moves a process, and all that it will start, into the group.
func (g *group) add(pid int) error {
	if g == nil {
		return nil
	}
	for _, dir := range g.dirs {
		if err := writeFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("limits: %w", err)
		}
	}
	return nil
}

// remove removes the group of a session that has ended. A process leaves its
// group a little after its death can be seen: EBUSY until then.
func (g *group) remove() error {
	if g == nil {
		return nil
	}
	var errs []error
	for _, dir := range g.dirs {
		err := unix.Rmdir(dir)
		for try := 0; err == unix.EBUSY && try < 200; try++ {
			time.Sleep(10 * time.Millisecond)
			err = unix.Rmdir(dir)
		}
		if err != nil && err != unix.ENOENT {
			errs = append(errs, fmt.Errorf("remove control group %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// sweep removes the groups that a daemon left which was killed. They are empty:
// its sandboxes died with it.
func (c *cgroups) sweep() {
	for _, base := range slices.AppendSeq(slices.Clone(c.v2), maps.Values(c.v1)) {
		entries, _ := os.ReadDir(base)
		for _, e := range entries {
			rest, ours := strings.CutPrefix(e.Name(), "scopefs-")
			owner, _, _ := strings.Cut(rest, "-")
			pid, err := strconv.Atoi(owner)
			if ours && err == nil && unix.Kill(pid, 0) == unix.ESRCH {
				unix.Rmdir(filepath.Join(base, e.Name()))
			}
		}
	}
}

// writeFile writes to a file that the kernel made; it never creates one.
func writeFile(name, value string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
