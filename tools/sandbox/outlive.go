package sandbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/packets"
	"github.com/scopefs/scopefs/internal/pidfd"
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
	Agent    *KeptGroup     `json:"agent,omitempty"` // Spec.Group
	Limits   Limits         `json:"limits"`
	Proxy    bool           `json:"proxy,omitempty"`
	Command  *Outlived      `json:"command,omitempty"` // whose files its client has; nil: none
	Killed   int            `json:"killed,omitempty"`  // with Command: see Session.killed
}

// Outlived is a command that lives on. Its fields but Files are for JSON.
type Outlived struct {
	ID      uint64    `json:"id"`
	Process int       `json:"process"` // in the sandbox
	Tag     string    `json:"tag,omitempty"`
	Began   time.Time `json:"began"`

	// Exit is that of a command that has ended; nil: it runs, or init has its exit status. Files are its standard output and
	// standard error, or none; Adopt takes them.
	Exit  *Exit      `json:"-"`
	Files []*os.File `json:"-"`
}

var errStatus = errors.New("its exit status is lost")

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

// KeptGroup is the group of an agent whose processes outlive the daemon that made it. Its fields are for JSON.
type KeptGroup struct {
	OutlivedGroup
	Limits *Limits `json:"limits,omitempty"` // nil: an earlier version kept it with a session, of the same limits
}

// Keep returns what the next daemon needs of the group; nil of nil.
func (g *Group) Keep() *KeptGroup {
	if g == nil {
		return nil
	}
	return &KeptGroup{*g.group.outlived(), &g.limits}
}

// Adopt returns the group, or nil if it has other limits, or is gone.
func (g *KeptGroup) Adopt(l Limits) *Group {
	if g == nil || g.Limits != nil && *g.Limits != l {
		return nil
	}
	all := g.group()
	of := &Group{group: all, view: all.below(viewGroup), shared: all.below("run"), limits: l}
	for _, dir := range of.view.dirs {
		if _, err := os.Stat(dir); err != nil {
			return nil
		}
	}
	return of
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
			descriptors.Close(files)
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
	if p != nil {
		o.Command = p.outlived()
	}
	s.mu.Unlock()
	if p != nil && o.Command == nil {
		return o, nil, ErrEnded
	}
	o.Agent = s.spec.Group.Keep()
	init, err := s.Init()
	if err != nil {
		return o, nil, err
	}
	files = append(files, init)
	control, err := dup(s.wire.Socket)
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
	return o, files, nil
}

// Init returns a pidfd of init, which does not block.
func (s *Session) Init() (*os.File, error) {
	fd, err := unix.PidfdOpen(s.PID(), unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("pidfd_open of init: %w", err)
	}
	init := os.NewFile(uintptr(fd), "init")
	select {
	case <-s.done: // the number may be another's
		init.Close()
		return nil, ErrEnded
	default:
		return init, nil
	}
}

// outlived returns what the next daemon needs of a command; nil if it does not run. The caller holds session.mu.
func (p *Process) outlived() *Outlived {
	if p.tagged == nil {
		return nil
	}
	return &Outlived{ID: p.id, Process: p.tagged.pid, Tag: p.tag, Began: p.began}
}

// Outlive returns what the next daemon needs of a command of a session of Outlive, and a pidfd of init, and the command's
// standard output and standard error, which the caller closes.
func (p *Process) Outlive() (o Outlived, files []*os.File, err error) {
	p.session.mu.Lock()
	made := p.outlived()
	p.session.mu.Unlock()
	if made == nil || p.Stdout == nil {
		return o, nil, ErrEnded
	}
	init, err := p.session.Init()
	if err != nil {
		return o, nil, err
	}
	files = []*os.File{init}
	for _, f := range []*os.File{p.Stdout, p.Stderr} {
		own, err := dup(f)
		if err != nil {
			descriptors.Close(files)
			return o, nil, err
		}
		files = append(files, own)
	}
	return *made, files, nil
}

// Session returns the session of the command.
func (p *Process) Session() *Session { return p.session }

// Bind kills the command when ctx ends.
func (p *Process) Bind(ctx context.Context) { go p.watch(ctx, 0) }

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

// Adopt continues with a session that an earlier daemon has left, and with the commands that live on. It kills all others. given
// are the files of Outlive, and stay the caller's. An init that does not answer ends the session. outOfMemory is
// Spec.OutOfMemory.
func (h *Host) Adopt(agent scope.ID, o Outliving, given []*os.File, commands []Outlived,
	outOfMemory func(*Session)) (_ *Session, all []*Process, err error) {
	want := outlivingProxy
	if o.Proxy {
		want++
	}
	var files []*os.File
	defer func() {
		if err != nil {
			descriptors.Close(files)
			for _, c := range commands {
				descriptors.Close(c.Files)
			}
		}
	}()
	if len(given) != want || o.PID <= 1 {
		return nil, nil, fmt.Errorf("%w: %d descriptors", ErrInvalid, len(given))
	}
	for _, f := range given {
		own, err := dup(f)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, own)
	}
	s := newSession(h, Spec{Agent: agent, Limits: o.Limits, Proxy: o.Proxy, OutOfMemory: outOfMemory}, o.Group.group())
	s.ownGroup, s.last, s.told, s.asked = o.OwnGroup, o.Last, false, rand.Uint64()|1
	if o.Command != nil {
		commands, s.killed = append(commands, *o.Command), o.Killed
	}
	var keep []uint64
	for _, c := range commands {
		p := s.adopt(c)
		if all = append(all, p); c.Exit == nil {
			keep = append(keep, c.ID)
		}
	}
	if o.Proxy {
		if err := s.takeListener(files[outlivingProxy:want]); err != nil {
			return nil, nil, err
		}
	}
	wire, err := unix.FcntlInt(given[outlivingControl].Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	files[outlivingControl].Close()
	if s.wire, err = packets.Open(wire, pid1.MaxReply); err != nil {
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
	if limit := o.Limits.Timeout; limit > 0 {
		for _, p := range all {
			go p.watch(context.Background(), max(time.Millisecond, limit-time.Since(p.began)))
		}
	}
	late := time.AfterFunc(s.answerTime, func() { s.fail(errors.New("init did not answer")) })
	go func() {
		defer late.Stop()
		select {
		case <-s.ready:
		case <-s.done:
		}
	}()
	if err := s.wire.Send(pid1.Request{Op: pid1.OpState, Keep: keep, Turn: s.asked}); err != nil {
		s.fail(err)
	}
	return s, all, nil
}

// adopt returns a command of an earlier daemon. Nobody else has s yet.
func (s *Session) adopt(c Outlived) *Process {
	p := &Process{session: s, id: c.ID, tag: c.Tag, running: true, began: c.Began,
		started: make(chan struct{}), stopped: make(chan uint64, 1), exited: make(chan struct{})}
	if len(c.Files) == 2 {
		p.Stdout, p.Stderr = c.Files[0], c.Files[1]
	}
	close(p.started)
	s.last = max(s.last, c.ID)
	p.tagged = s.tags.started(c.Process, c.Tag)
	if c.Exit != nil {
		s.tags.exited(p.tagged)
		p.exit = *c.Exit
		close(p.exited)
	} else {
		s.procs[p.id] = p
	}
	return p
}

// Continue makes commands of a session of Adopt what they are in a session that spec makes. What makes the session itself must
// be the same, but for Spec.Context: it is nil if the sandbox still has one, and else Continue mounts it.
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
	return s.host.starter.thread.Do(func() error {
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
func ended(process *os.File) <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		<-pidfd.Ended(process)
		process.Close()
	}()
	return gone
}
