package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

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
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return cgroups{}, fmt.Errorf("control groups: %w", err)
	}
	c := parseCgroups(string(own), string(mounts))
	c.last = new(atomic.Uint64)
	return c, nil
}

// parseCgroups joins /proc/PID/cgroup, lines of number:controllers:path, with
// the mounts of these hierarchies (proc_pid_mountinfo(5)).
func parseCgroups(own, mounts string) cgroups {
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
func mounted(mounts, fstype, controller, path string) string {
	for line := range strings.Lines(mounts) {
		left, right, _ := strings.Cut(line, " - ")
		mount, super := strings.Fields(left), strings.Fields(right)
		if len(mount) < 5 || len(super) < 3 || super[0] != fstype {
			continue
		}
		if controller != "" && !slices.Contains(strings.Split(super[2], ","), controller) {
			continue
		}
		// The mount may show a subtree only (a container's): fields 4 and 5.
		if rel, err := filepath.Rel(mount[3], path); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			return filepath.Join(mount[4], rel)
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
