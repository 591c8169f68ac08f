package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// entry is how bwrap begins in its control group. A move to the group takes the kernel 10 ms (an RCU grace period, see
// [Groups.Prepare]), and makes all processes wait that start on the host. A thread's own move takes it none (v1), nor does
// clone3(2) with CLONE_INTO_CGROUP (v2).
//
// Our other forks wait until bwrap is executed, and what is in the group could keep the processor from it meanwhile. So there is
// an entry only to a quiet group: see [Group.Quiet]. To others bwrap is moved: see [Session.handshake].
type entry struct {
	dir *os.File   // v2: the group
	to  []*os.File // v1: the threads of the group, in each hierarchy,
	own []*os.File // and those of the group of this process
}

// enter opens the way into the group of an order; nil if bwrap has to be moved. The fork thread calls it, which alone
// puts processes into groups that have none.
func (s *starter) enter(o order) *entry {
	if o.group == nil || !o.agent.Quiet() {
		return nil
	}
	e := &entry{}
	if o.group.version == "v2" {
		var err error
		if e.dir, err = os.OpenFile(o.group.dirs[0], unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
			return nil
		}
		return e
	}
	for _, dir := range o.group.dirs {
		home := s.cgroups.home(dir)
		to, err := os.OpenFile(filepath.Join(dir, "tasks"), os.O_WRONLY, 0)
		own, failed := os.OpenFile(filepath.Join(home, "tasks"), os.O_WRONLY, 0)
		e.to, e.own = append(e.to, to), append(e.own, own)
		if err != nil || failed != nil || home == "" {
			e.close()
			return nil
		}
	}
	return e
}

// home returns the group of this process above a group of v1; "" if it is another's.
func (c *cgroups) home(dir string) string {
	for _, own := range c.v1 {
		if below(dir, own) {
			return own
		}
	}
	return ""
}

// start starts the command in the group, and reports whether it did. Where the kernel refuses that, it starts the command where the
// thread is. The fork thread calls it.
func (e *entry) start(command func() *exec.Cmd) (cmd *exec.Cmd, inside bool, err error) {
	if e != nil {
		if cmd = command(); e.fork(cmd) == nil {
			return cmd, true, nil
		}
	}
	cmd = command()
	return cmd, false, cmd.Start()
}

func (e *entry) fork(cmd *exec.Cmd) error {
	if e.dir != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(e.dir.Fd())
		return cmd.Start()
	}
	defer func() {
		for _, own := range e.own {
			if _, err := own.WriteString("0"); err != nil { // this thread
				panic(fmt.Sprintf("return to the control group: %v", err)) // cannot happen: it was ours a moment ago
			}
		}
	}()
	for _, to := range e.to {
		if _, err := to.WriteString("0"); err != nil {
			return err
		}
	}
	return cmd.Start()
}

func (e *entry) close() {
	if e == nil {
		return
	}
	e.dir.Close() // of nil is an error and no more
	for i := range e.to {
		e.to[i].Close()
		e.own[i].Close()
	}
}

// Quiet reports whether no process of the agent but its view is in the group, and nothing limits its processors. A nil Group
// stands for a new one of a session.
func (g *Group) Quiet() bool {
	if g == nil {
		return true
	}
	if g.limits.CPU > 0 || len(g.group.dirs) == 0 {
		return false
	}
	dir := g.group.dirs[0]
	children, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, child := range children {
		if child.IsDir() && child.Name() != viewGroup && inUse(filepath.Join(dir, child.Name())) {
			return false
		}
	}
	return true
}
