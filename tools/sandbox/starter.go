package sandbox

import (
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/scopefs/scopefs/internal/pinned"
)

// starter forks every bwrap: on one thread, in a mount namespace and a control group that the thread enters for it. It knows no
// agent, no Spec and no plan: an order is all that it gets. So it can be a process of its own for a Host that may not mount.
type starter struct {
	bwrap   string
	thread  pinned.Thread
	cgroups cgroups
	locked  atomic.Bool // mounts cannot be taken singly: see Host.needed
}

// order is one start of bwrap: checked arguments and descriptors.
type order struct {
	words  []string            // after the name of the program; what shall be in no list of processes, bwrap reads from a pipe
	files  []*os.File          // from descriptor 3 on
	output io.Writer           // standard output and error
	as     *syscall.Credential // nil: this process's
	mounts []string            // the mounts that the namespace has; none: all
	beside asides
	group  *group // nil: none, as for one that bwrap is moved to
	agent  *Group // that group is in; nil: group is new
}

// begun is a bwrap that was started.
type begun struct {
	*exec.Cmd
	inside bool // it is in the group of its order
}

// start starts one bwrap.
func (s *starter) start(o order) (b begun, err error) {
	command := func() *exec.Cmd {
		cmd := exec.Command(s.bwrap, o.words...)
		cmd.Dir, cmd.Env = "/", []string{}
		cmd.Stdout, cmd.Stderr = o.output, o.output
		cmd.WaitDelay = time.Second // for the output, if init outlives bwrap
		cmd.ExtraFiles = o.files
		// A session of its own: signals of the daemon's terminal must not reach bwrap.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: o.as}
		return cmd
	}
	err = s.thread.Do(func() error {
		entry := s.enter(o)
		defer entry.close()
		return s.among(o.mounts, o.beside, func() (err error) {
			b.Cmd, b.inside, err = entry.start(command)
			return err
		})
	})
	return b, err
}
