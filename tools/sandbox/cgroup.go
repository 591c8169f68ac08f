package sandbox

import (
	"cmp"
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

	"github.com/moby/sys/mountinfo"
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
	own  string            // the group of this process, in one of them
	last *atomic.Uint64
}

// daemonGroup is the group beneath a delegated one in which the daemon itself
// is: a group with controllers for its children has no processes (cgroups(7),
// "no internal processes").
const daemonGroup = "daemon"

// findCgroups finds the groups that this process is in. Sessions get theirs
// beneath, so that a limit of the daemon holds for them too.
func findCgroups() (cgroups, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return cgroups{}, fmt.Errorf("control groups: %w", err)
	}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return cgroups{}, fmt.Errorf("control groups: %w", err)
	}
	c := parseCgroups(string(own), mounts)
	c.last = new(atomic.Uint64)
	return c, nil
}

// parseCgroups joins /proc/PID/cgroup, lines of number:controllers:path, with
// the mounts of these hierarchies.
func parseCgroups(own string, mounts []*mountinfo.Info) cgroups {
	c := cgroups{v1: make(map[string]string)}
	for line := range strings.Lines(own) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		if part[1] == "" {
			dir := mounted(mounts, "cgroup2", "", part[2])
			c.own = cmp.Or(c.own, dir)
			if filepath.Base(part[2]) == daemonGroup {
				c.v2 = append(c.v2, filepath.Dir(dir))
			} else if dir != "" {
				c.v2 = append(c.v2, dir)
			}
			if root := mounted(mounts, "cgroup2", "", "/"); root != "" {
				c.v2 = append(c.v2, filepath.Join(root, "scopefs"))
			}
			continue
		}
		for _, controller := range strings.Split(part[1], ",") {
			if dir := mounted(mounts, "cgroup", controller, part[2]); dir != "" {
				c.v1[controller], c.own = dir, dir
			}
		}
	}
	return c
}

// mounted returns where group path of a hierarchy can be seen.
func mounted(mounts []*mountinfo.Info, fstype, controller, path string) string {
	for _, m := range mounts {
		if m.FSType != fstype || controller != "" && !slices.Contains(strings.Split(m.VFSOptions, ","), controller) {
			continue
		}
		// The mount may show a subtree only, a container's.
		if rel, err := filepath.Rel(m.Root, path); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			return filepath.Join(m.Mountpoint, rel)
		}
	}
	return ""
}

// findV2 returns a v2 group that can give its children the controllers, or "".
func (c *cgroups) findV2(settings []setting) string {
	for _, dir := range c.v2 {
		if delegate(dir, settings) == nil {
			return dir
		}
	}
	return ""
}

// delegate sees that a group gives its children the controllers. The group of
// our own at the root, for a daemon that root started by hand, is made first.
func delegate(dir string, settings []setting) error {
	up := []string{dir}
	if filepath.Base(dir) == "scopefs" {
		up = []string{filepath.Dir(dir), dir}
	}
	for _, dir := range up {
		if occupied(dir) {
			return unix.EBUSY
		}
		for _, s := range settings {
			have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
			if err != nil {
				return err
			}
			if !slices.Contains(strings.Fields(string(have)), s.controller) {
				return unix.ENOENT
			}
			if err := writeFile(filepath.Join(dir, "cgroup.subtree_control"), "+"+s.controller); err != nil {
				return err
			}
		}
		if dir != up[len(up)-1] {
			if err := os.Mkdir(up[1], 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
		}
	}
	return nil
}

// occupied reports whether a group has processes, and is not the root, which alone has no type. The
// kernel refuses controllers for its children, except cpu and pids: these make it a threaded domain,
// whose new children cannot have processes (cgroups(7), "Threaded mode").
func occupied(dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, "cgroup.type")); err != nil {
		return false
	}
	procs, err := os.Open(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return false
	}
	defer procs.Close()
	n, _ := procs.Read(make([]byte, 1)) // not all of it: many thousands of processes may be there
	return n > 0
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

// group is one control group; nil is none.
type group struct {
	version string
	dirs    []string
	memory  string // of dirs, the one that counts out-of-memory kills
}

func (g *group) kind() string {
	if g == nil {
		return "none"
	}
	return "cgroup " + g.version
}

// Groups is where control groups of agents can be made.
type Groups struct{ cgroups cgroups }

// OpenGroups finds where this process can make control groups, and removes those that
// a daemon left which was killed.
func OpenGroups() (*Groups, error) {
	c, err := findCgroups()
	if err != nil {
		return nil, err
	}
	c.sweep()
	return &Groups{c}, nil
}

// Prepare makes moves of processes fast that follow within milliseconds. The first move after a pause waits for an RCU
// grace period, 10 ms, to lock cgroup_threadgroup_rwsem (kernel/cgroup/cgroup.c); so does a move of this process to where
// it is. An error costs only time.
func (c *Groups) Prepare() {
	if c.cgroups.own != "" {
		_ = writeFile(filepath.Join(c.cgroups.own, "cgroup.procs"), "0")
	}
}

// Group is the control group of one agent: Limits.Memory and Limits.CPU hold for all that
// is in it together, its view and its sandboxes. Agents have equal shares of the
// processors, whatever number of processes they have. A nil Group limits nothing.
type Group struct {
	group  *group
	shared *group // of sandboxes without a limit of their own
	view   *group
	limits Limits
	last   atomic.Uint64
}

// limited reports whether the agent's definition limits the group: it is not only for equal shares.
func (g *Group) limited() bool { return len(g.limits.v2()) > 0 }

// Agent makes the group of an agent. Without limits it returns nil where none can be made;
// a limit that cannot be enforced is a *MissingError.
func (c *Groups) Agent(agent scope.ID, l Limits) (*Group, error) {
	all := Limits{Memory: l.Memory, CPU: l.CPU}
	g := &Group{limits: l}
	err := error(nil)
	if g.group, err = c.cgroups.newGroup(agent, all, controllers(l)); err != nil || g.group == nil {
		if !g.limited() {
			err = nil
		}
		return nil, err
	}
	if g.view, err = g.group.child(viewGroup, nil); err == nil {
		g.shared, err = g.group.child("run", nil)
	}
	if err != nil {
		_ = g.Remove() // err says why no group can be used
		if !g.limited() {
			return nil, nil
		}
		return nil, missingGroup("agent", err)
	}
	return g, nil
}

// AddView moves the process of the agent's view, or another one of ours for the agent, into the group. The kernel kills it last
// when the agent is out of memory: without it nothing of the agent works.
func (g *Group) AddView(pid int) error {
	if g == nil {
		return nil
	}
	_ = writeFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), viewScore) // takes root
	if g.view.has(pid) {                                                 // all processes that start would wait for a move
		return nil
	}
	return g.view.add(pid)
}

const viewScore = "-900"

// viewGroup is the name of the view's group in the agent's.
const viewGroup = "view"

// ViewKills counts the processes of views of the agent that the kernel killed because there
// was no memory.
func (g *Group) ViewKills() int {
	if g == nil {
		return 0
	}
	return g.view.kills()
}

// Remove removes the group of an agent whose processes have ended.
func (g *Group) Remove() error {
	if g == nil {
		return nil
	}
	return removeGroups(g.view, g.shared, g.group)
}

// session returns the group of one sandbox: its own where processes are limited, or where
// it must be known in which sandbox there was no memory.
func (g *Group) session(l Limits) (*group, error) {
	if l.PIDs == 0 && l.Memory == 0 {
		return g.shared, nil
	}
	var most *setting
	if l.PIDs > 0 {
		most = &setting{"pids", "pids.max", strconv.Itoa(l.PIDs + extraPIDs), false}
	}
	child, err := (*group)(nil), os.ErrExist
	for errors.Is(err, os.ErrExist) { // an earlier daemon's
		child, err = g.group.child(fmt.Sprintf("run-%d", g.last.Add(1)), most)
	}
	if err != nil {
		return nil, missingGroup("pids", err)
	}
	return child, nil
}

// controllers are those of an agent's group: processors and memory are counted in any case.
func controllers(l Limits) []string {
	if l.PIDs > 0 {
		return []string{"pids", "memory", "cpu"}
	}
	return []string{"memory", "cpu"}
}

func missingGroup(controller string, err error) error {
	if at, ok := errors.AsType[*os.PathError](err); ok {
		err = at.Err // the path says nothing to whoever has set the limit
	}
	return &MissingError{
		fmt.Sprintf("limits: no control group for %s (%v)", controller, err),
		"remove the limit, or run as root, or as a systemd service with Delegate=yes DelegateSubgroup=" + daemonGroup,
	}
}

// newGroup makes a group with limits in each controller, or fails: a limit that cannot be
// enforced is an error before anything runs.
func (c *cgroups) newGroup(agent scope.ID, l Limits, in []string) (*group, error) {
	g, settings := &group{version: "v2"}, l.v2()
	for _, name := range in {
		settings = append(settings, setting{controller: name})
	}
	if len(settings) == 0 {
		return nil, nil
	}
	v2 := c.findV2(settings)
	base := func(string) string { return v2 }
	if v2 == "" {
		g.version, settings = "v1", l.v1()
		for _, name := range in {
			settings = append(settings, setting{controller: name})
		}
		base = func(controller string) string { return c.v1[controller] }
	}
	name := fmt.Sprintf("scopefs-%d-%d-%d-%s", os.Getpid(), pidNamespace(), c.last.Add(1), agent)
	for _, s := range settings {
		if err := g.set(base(s.controller), name, s); err != nil {
			return nil, errors.Join(missingGroup(s.controller, err), g.remove())
		}
		if g.version == "v2" && len(in) > 0 && s.file == "" { // for its children
			if err := writeFile(filepath.Join(g.dirs[0], "cgroup.subtree_control"), "+"+s.controller); err != nil {
				return nil, errors.Join(missingGroup(s.controller, err), g.remove())
			}
		}
	}
	return g, nil
}

// child makes a group within g, in all its hierarchies, with a setting in the one that
// has it.
func (g *group) child(name string, s *setting) (*group, error) {
	c := &group{version: g.version}
	done := s == nil
	for _, dir := range g.dirs {
		at := setting{}
		if dir == g.memory {
			at.controller = "memory"
		}
		err := c.set(dir, name, at)
		if err == nil && s != nil {
			if err = c.set(dir, name, *s); err == nil {
				done = true
			} else if errors.Is(err, os.ErrNotExist) { // of another controller
				err = nil
			}
		}
		if err != nil {
			return nil, errors.Join(err, c.remove())
		}
	}
	if !done {
		return nil, errors.Join(unix.ENOENT, c.remove())
	}
	return c, nil
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
	if s.controller == "memory" || g.version == "v2" {
		g.memory = dir
	}
	if s.file == "" {
		return nil
	}
	err := writeFile(filepath.Join(dir, s.file), s.value)
	if s.optional && errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// kills counts the processes of the group that the kernel killed because there was no
// memory: memory.events (v2), memory.oom_control (v1).
func (g *group) kills() int {
	if g == nil || g.memory == "" {
		return 0
	}
	file := "memory.events"
	if g.version == "v1" {
		file = "memory.oom_control"
	}
	text, _ := os.ReadFile(filepath.Join(g.memory, file))
	for line := range strings.Lines(string(text)) {
		if count, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			n, _ := strconv.Atoi(count)
			return n
		}
	}
	return 0
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

// has reports whether a process is in the group, in all its hierarchies.
func (g *group) has(pid int) bool {
	return !slices.ContainsFunc(g.dirs, func(dir string) bool {
		text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		return !slices.Contains(strings.Fields(string(text)), strconv.Itoa(pid))
	})
}

// removeTime is how long processes that have been killed may take to leave their groups. Those that wait
// for a frozen disk stay.
const removeTime = 2 * time.Second

// remove removes the group of a session that has ended.
func (g *group) remove() error { return removeGroups(g) }

// removeGroups removes groups in this order. A process leaves its group a little after its death can be
// seen: EBUSY until then.
func removeGroups(groups ...*group) error {
	var errs []error
	end := time.Now().Add(removeTime)
	for _, g := range groups {
		if g == nil {
			continue
		}
		for _, dir := range g.dirs {
			err := unix.Rmdir(dir)
			for pause := time.Millisecond; err == unix.EBUSY && time.Now().Before(end); pause = min(2*pause, 16*time.Millisecond) {
				time.Sleep(pause)
				err = unix.Rmdir(dir)
			}
			if err != nil && err != unix.ENOENT {
				errs = append(errs, fmt.Errorf("remove control group %s: %w", dir, err))
			}
		}
	}
	return errors.Join(errs...)
}

// pidNamespace returns the number of our pid namespace: pid_namespaces(7).
func pidNamespace() uint64 {
	var st unix.Stat_t
	_ = unix.Stat("/proc/self/ns/pid", &st) // 0 without /proc
	return st.Ino
}

// sweep removes the groups that a killed daemon left. It leaves those of daemons in other pid
// namespaces, whose ids mean nothing here, and those with processes, which another daemon may
// continue with.
func (c *cgroups) sweep() {
	here := strconv.FormatUint(pidNamespace(), 10)
	for _, base := range slices.AppendSeq(slices.Clone(c.v2), maps.Values(c.v1)) {
		entries, _ := os.ReadDir(base)
		for _, e := range entries {
			words := strings.SplitN(e.Name(), "-", 4)
			if len(words) < 4 || words[0] != "scopefs" || words[2] != here {
				continue
			}
			pid, err := strconv.Atoi(words[1])
			if err != nil || unix.Kill(pid, 0) != unix.ESRCH {
				continue
			}
			dir := filepath.Join(base, e.Name())
			all, used := []string{dir}, inUse(dir)
			children, _ := os.ReadDir(dir)
			for _, child := range children {
				if child.IsDir() {
					all = append(all, filepath.Join(dir, child.Name()))
					used = inUse(all[len(all)-1]) || used
				}
			}
			if used {
				continue
			}
			for _, dir := range slices.Backward(all) {
				unix.Rmdir(dir)
			}
		}
	}
}

// inUse reports whether a group has processes.
func inUse(dir string) bool {
	text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	return len(text) > 0
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
