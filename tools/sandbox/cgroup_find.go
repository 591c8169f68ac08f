package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

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
			if dir := mounted(mounts, "cgroup2", "", part[2]); filepath.Base(part[2]) == daemonGroup {
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
				c.v1[controller] = dir
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
		for _, s := range settings {
			have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
			if err != nil {
				return err
			}
			if !slices.Contains(strings.Fields(string(have)), s.controller) {
				return unix.ENOENT
			}
			// EBUSY: the group has processes, and is not the root.
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
