// Package guard aborts the FUSE connections of a daemon that has died.
//
// A view whose daemon was killed ends by itself. One that was killed with it may
// not: a thread of it that waits in write(2) for a directory lock keeps
// /dev/fuse open, and the client that holds the lock waits for an answer from
// the view. Neither reacts to SIGKILL. Only an abort of the connection frees
// them (fuse: Documentation/filesystems/fuse.rst, "Aborting a filesystem
// connection"). The guard is a small process of the daemon's that does it when
// the daemon's end of their socket is closed, however the daemon ended.
package guard

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusedev"
)

// Name is the argv[0] that makes scopefs a guard.
const Name = "scopefs-guard"

const socketFD = 3 // the guard's end of the socket

// A message is the id of a connection, 8 bytes. Adding one also has its mount
// point and, where there is one, a descriptor of its abort file.
const maxMessage = 8 + unix.PathMax

// Main is the guard process. It returns the exit status.
func Main() int {
	// A service manager ends all processes of the daemon at once: the guard goes last.
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 1
	}
	held := map[uint64]fusedev.Connection{}
	buf, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4))
	for {
		n, nrights, _, _, err := unix.Recvmsg(socketFD, buf, rights, unix.MSG_CMSG_CLOEXEC)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || n < 8: // 0: the daemon is gone
			for _, c := range held {
				_ = c.Abort()
			}
			return 0
		}
		id := binary.LittleEndian.Uint64(buf)
		if old, ok := held[id]; ok {
			old.Close()
			delete(held, id)
		}
		if n > 8 {
			held[id] = fusedev.Connection{Dir: string(buf[8:n]), File: received(rights[:nrights])}
		}
	}
}

// received returns the descriptor that came with a message, or nil.
func received(rights []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) == 0 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil
	}
	return os.NewFile(uintptr(fds[0]), "abort")
}

// Guard is the daemon's side. A guard process that dies is replaced.
type Guard struct {
	failed func(error) // is called when the process cannot be started again

	mu     sync.Mutex
	socket int // -1: there is no process
	proc   *os.Process
	held   map[uint64]fusedev.Connection
	last   uint64
	closed bool
	done   sync.WaitGroup
}

// Start starts the guard process. failed is called, from another goroutine, if
// that process has died and cannot be replaced.
func Start(failed func(error)) (*Guard, error) {
	g := &Guard{failed: failed, socket: -1, held: map[uint64]fusedev.Connection{}}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g, g.start()
}

// start starts a process and tells it of all connections. The caller holds the lock.
func (g *Guard) start() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	theirs := os.NewFile(uintptr(pair[1]), "guard")
	defer theirs.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Dir, cmd.Env = []string{Name}, "/", []string{"GOMAXPROCS=1"}
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		unix.Close(pair[0])
		return fmt.Errorf("start guard process: %w", err)
	}
	g.socket, g.proc = pair[0], cmd.Process
	for id, c := range g.held {
		g.tell(id, c)
	}
	g.done.Go(func() {
		_ = cmd.Wait()
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.closed {
			return
		}
		unix.Close(g.socket)
		if err := g.start(); err != nil {
			g.socket = -1
			g.failed(err)
		}
	})
	return nil
}

// Add has the guard abort c when the daemon is gone. remove takes it back. c
// must stay open until then.
func (g *Guard) Add(c fusedev.Connection) (remove func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last++
	id := g.last
	g.held[id] = c
	g.tell(id, c)
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.held, id)
		g.tell(id, fusedev.Connection{})
	})
}

// tell sends one message. A guard that does not take it has died or is stopped:
// the next one is told of all. The caller holds the lock.
func (g *Guard) tell(id uint64, c fusedev.Connection) {
	if g.socket < 0 {
		return
	}
	var rights []byte
	if c.File != nil {
		rights = unix.UnixRights(int(c.File.Fd()))
	}
	msg := append(binary.LittleEndian.AppendUint64(nil, id), c.Dir...)
	if err := unix.Sendmsg(g.socket, msg, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT); err != nil {
		_ = g.proc.Kill()
	}
}

// Close ends the process and waits for it. What it still holds is aborted.
func (g *Guard) Close() {
	g.mu.Lock()
	g.closed = true
	if g.socket >= 0 {
		unix.Close(g.socket)
	}
	g.mu.Unlock()
	g.done.Wait()
}
