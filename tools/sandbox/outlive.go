package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/proc"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

// ErrLeft is the error of the commands of a session that was left to the next daemon.
var ErrLeft = errors.New("the sandbox is left to the next daemon")

// Outliving is what the next daemon needs of a session and of the command that lives on, beside the files of Outlive. Its
// fields are for JSON.
type Outliving struct {
	PID      int            `json:"pid"` // of init
	Last     uint64         `json:"last"`
	Group    *OutlivedGroup `json:"group,omitempty"`
	OwnGroup bool           `json:"own_group,omitempty"`
	Agent    *OutlivedGroup `json:"agent,omitempty"` // Spec.Group
	Limits   Limits         `json:"limits"`
	Proxy    bool           `json:"proxy,omitempty"`
	Command  uint64         `json:"command,omitempty"` // 0: none lives on
	Process  int            `json:"process,omitempty"` // of the command, in the sandbox
	Began    time.Time      `json:"began,omitzero"`    // the command
	Killed   int            `json:"killed,omitempty"`  // see Session.killed
}

// OutlivedGroup is a control group.
type OutlivedGroup struct {
	Version string   `json:"version"`
	Dirs    []string `json:"dirs"`
	Memory  string   `json:"memory"`
}

func (g *group) outlived() *OutlivedGroup {
	if g == nil {
		return nil
	}
	return &OutlivedGroup{g.version, g.dirs, g.memory}
}

func (g *OutlivedGroup) group() *group {
	if g == nil {
		return nil
	}
	return &group{version: g.Version, dirs: g.Dirs, memory: g.Memory}
}

// Adopt returns the group of an agent whose processes outlive the daemon that made it, by the limits that it has.
func (g *OutlivedGroup) Adopt(l Limits) *Group {
	all := g.group()
	return &Group{group: all, view: all.below("view"), shared: all.below("run"), limited: len(l.v2()) > 0}
}

// below returns a child that there is.
func (g *group) below(name string) *group {
	c := &group{version: g.version}
	for _, dir := range g.dirs {
		c.dirs = append(c.dirs, dir+"/"+name)
	}
	if i := slices.Index(g.dirs, g.memory); i >= 0 {
		c.memory = c.dirs[i]
	}
	return c
}

// The files of Outlive.
const (
	outlivingInit    = iota // pidfd, not blocking
	outlivingControl        // the control socket
	outlivingProxy          // with Outliving.Proxy: the listening socket
)

// Outlive makes init, and so the session, live as long as any process has the files, which the caller closes. The daemon's end
// ends the session no more. p is its only command, which runs and lives on; nil: what a command has started and left in the
// background lives on, and Adopt ends the commands that run then.
func (s *Session) Outlive(p *Process) (_ Outliving, files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeFiles(files)
			files = nil
		}
	}()
	s.mu.Lock()
	listens := s.listens
	o := Outliving{
		PID:      s.pid,
		Last:     s.last,
		Group:    s.group.outlived(),
		OwnGroup: s.ownGroup,
		Limits:   s.spec.Limits,
		Proxy:    s.spec.Proxy,
		Killed:   s.killed,
	}
	if p != nil && p.tagged != nil {
		o.Command, o.Began, o.Process = p.id, p.began, p.tagged.pid
	}
	s.mu.Unlock()
	if p != nil && o.Command == 0 {
		return o, nil, ErrEnded
	}
	if s.spec.Group != nil {
		o.Agent = s.spec.Group.group.outlived()
	}
	fd, err := unix.PidfdOpen(o.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return o, nil, fmt.Errorf("pidfd_open of init: %w", err)
	}
	files = append(files, os.NewFile(uintptr(fd), "init"))
	select {
	case <-s.done: // the number may be another's
		return o, files, ErrEnded
	default:
	}
	control, err := s.wire.File()
	if err != nil {
		return o, files, err
	}
	files = append(files, control)
	if listens != nil {
		l, err := listens.(*net.TCPListener).File()
		if err != nil {
			return o, files, err
		}
		files = append(files, l)
	}
	return o, files, s.wire.Send(pid1.Request{Op: pid1.OpOutlive})
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// Leave leaves the session to the next daemon. Its command's Wait returns ErrLeft.
func (s *Session) Leave() {
	s.mu.Lock()
	if s.left || s.ended || s.closing {
		s.mu.Unlock()
		return
	}
	s.left, s.ended, s.err = true, true, nil
	for _, p := range s.procs {
		p.finish(Exit{Code: -1}, ErrLeft)
	}
	clear(s.procs)
	if s.listens != nil {
		s.listens.Close()
	}
	unix.Close(s.pidfd)
	s.pidfd = -1
	s.mu.Unlock()
	s.wire.Close()
	s.host.release(s)
	close(s.done)
}

// Left reports whether the session was left to the next daemon.
func (s *Session) Left() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left
}

// Adopt continues with a session that an earlier daemon has left, and with the command that lives on, which has no files; nil:
// there is none. given are those of Outlive, and stay the caller's. An init that does not answer ends the session. outOfMemory
// is Spec.OutOfMemory.
func (h *Host) Adopt(agent scope.ID, o Outliving, given []*os.File, outOfMemory func(*Session)) (_ *Session, _ *Process, err error) {
	want := outlivingProxy
	if o.Proxy {
		want++
	}
	if len(given) != want || o.PID <= 1 || o.Command > o.Last {
		return nil, nil, fmt.Errorf("%w: %d descriptors", ErrInvalid, len(given))
	}
	var files []*os.File
	defer func() {
		if err != nil {
			closeFiles(files)
		}
	}()
	for _, f := range given {
		own, err := dup(f)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, own)
	}
	s := newSession(h, Spec{Agent: agent, Limits: o.Limits, Proxy: o.Proxy, OutOfMemory: outOfMemory}, o.Group.group())
	s.ownGroup, s.last, s.told = o.OwnGroup, o.Last, false
	var p *Process
	if o.Command > 0 {
		p = &Process{session: s, id: o.Command, running: true, started: make(chan struct{}), exited: make(chan struct{}), began: o.Began}
		close(p.started)
		s.procs[p.id], p.tagged = p, s.tags.started(o.Process, "")
		s.killed = o.Killed
	}
	if o.Proxy {
		if err := s.takeListener(files[outlivingProxy:want]); err != nil {
			return nil, nil, err
		}
	}
	if s.wire, err = pid1.OpenWire(files[outlivingControl]); err != nil {
		return nil, nil, err
	}
	if s.pidfd, err = unix.FcntlInt(given[outlivingInit].Fd(), unix.F_DUPFD_CLOEXEC, 0); err == nil {
		err = h.hold(s)
	}
	if err != nil {
		s.wire.Close()
		unix.Close(s.pidfd)
		return nil, nil, err
	}
	s.pid, s.gone = o.PID, ended(files[outlivingInit])
	go s.wait()
	if limit := o.Limits.Timeout; p != nil && limit > 0 {
		go p.watch(context.Background(), max(time.Millisecond, limit-time.Since(o.Began)))
	}
	late := time.AfterFunc(s.answerTime, func() { s.fail(errors.New("init did not answer")) })
	go func() {
		defer late.Stop()
		select {
		case <-s.ready:
		case <-s.done:
		}
	}()
	if err := s.wire.Send(pid1.Request{Op: pid1.OpState, ID: o.Command}); err != nil {
		s.fail(err)
	}
	return s, p, nil
}

// Continue makes commands of a session of Adopt what they are in a session that spec makes. What makes the session itself must
// be the same, but for Spec.Context: that has ended with its daemon, and Continue mounts another one.
func (s *Session) Continue(spec Spec) error {
	s.mu.Lock()
	pidfd, err := unix.FcntlInt(uintptr(s.pidfd), unix.F_DUPFD_CLOEXEC, 0)
	s.spec = spec
	s.mu.Unlock()
	if err != nil {
		return ErrEnded
	}
	defer unix.Close(pidfd)
	if spec.Context == nil {
		return nil
	}
	root := int(spec.Context.Fd())
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(root, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return s.host.thread.Do(func() error {
		back, err := comingBack()
		if err != nil {
			return err
		}
		defer back()
		if err := unix.Setns(pidfd, unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("mount namespace of init: %w", err)
		}
		_ = unix.Unmount(Context, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH) // if it is not possible, the other one covers it
		if err := unix.MoveMount(root, "", unix.AT_FDCWD, Context, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount %s: %w", Context, err)
		}
		return nil
	})
}

// ended returns a channel that is closed when the process of a pidfd is gone. It closes the pidfd.
func ended(pidfd *os.File) <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		<-proc.Ended(pidfd)
		pidfd.Close()
	}()
	return gone
}
