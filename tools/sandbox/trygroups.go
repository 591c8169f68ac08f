package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// TryGroups makes the control group of an agent with every limit, moves a process into it,
// and removes it. It returns the version of control groups, and a *MissingError where a
// limit cannot be enforced.
func TryGroups() (version string, err error) {
	c, err := findCgroups()
	if err != nil {
		return "", err
	}
	defer c.restore(c.snapshot())
	limits := Limits{Memory: 1 << 30, PIDs: 100, CPU: 1}
	g, err := (&Groups{c}).Agent("doctor", limits)
	if err != nil {
		return "", err
	}
	child, err := g.session(limits)
	defer func() { err = errors.Join(err, child.remove(), g.Remove()) }()
	if err != nil {
		return "", err
	}
	cmd := exec.Command("cat") // it waits for the end of its input
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", err
	}
	if err = child.add(cmd.Process.Pid); err != nil {
		err = missingGroup("sandboxes", err)
	}
	in.Close()
	_ = cmd.Wait()
	return child.kind(), err
}

// snapshot returns the controllers of the v2 groups that delegate may change, and of the
// root above them; nil stands for a group that does not exist.
func (c *cgroups) snapshot() map[string][]string {
	before := map[string][]string{}
	for _, dir := range c.v2 {
		for _, dir := range []string{dir, filepath.Dir(dir)} {
			text, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
			before[dir] = strings.Fields(string(text))
			if err != nil {
				before[dir] = nil
			}
		}
	}
	return before
}

// restore undoes what delegate has done since snapshot, unless another process uses it by
// now: the kernel then answers EBUSY.
func (c *cgroups) restore(before map[string][]string) {
	for _, dir := range c.v2 {
		if before[dir] == nil {
			_ = os.Remove(dir)
		}
		for _, dir := range []string{dir, filepath.Dir(dir)} {
			text, _ := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
			for _, controller := range strings.Fields(string(text)) {
				if !slices.Contains(before[dir], controller) {
					_ = writeFile(filepath.Join(dir, "cgroup.subtree_control"), fmt.Sprintf("-%s", controller))
				}
			}
		}
	}
}
