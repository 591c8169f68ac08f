// Package guard aborts the FUSE connections of a daemon that has died.
//
// A view whose daemon was killed exits by itself. A view killed together with
// the daemon may not exit: if one of its threads is in write(2) and waits for a
// directory lock, it keeps /dev/fuse open, and the client that holds the lock
// waits for the view's response. Neither reacts to SIGKILL. Only an abort of
// the connection frees them (Documentation/filesystems/fuse.rst, "Aborting a
// filesystem connection"). The guard is a small process of the daemon. It
// aborts the connections when the daemon's end of their socket is closed,
// however the daemon exited.
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

// Name is the argv[0] of a guard process.
const Name = "scopefs-guard"

const socketFD = 3 // the guard's end of the socket

// A message is the id of a connection, 8 bytes. A message that adds a
// connection also has its mount point and, if available, a descriptor of its
// abort file.
const maxMessage = 8 + unix.PathMax

// Main runs the guard process and returns its exit status.
func Main() int {
	// A service manager signals all processes of the daemon at once. The guard
	// must exit last.
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 1
	}
	connections := map[uint64]fusedev.Connection{}
	buf, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4))
	for {
		n, nrights, _, _, err := unix.Recvmsg(socketFD, buf, rights, unix.MSG_CMSG_CLOEXEC)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || n < 8: // 0: the daemon has exited
			for _, c := range connections {
				_ = c.Abort()
			}
			return 0
		}
		id := binary.LittleEndian.Uint64(buf)
		if old, ok := connections[id]; ok {
			old.Close()
			delete(connections, id)
		}
		if n > 8 {
			connections[id] = fusedev.Connection{Dir: string(buf[8:n]), File: received(rights[:nrights])}
		}
	}
}

// received returns the descriptor in a message, or nil.
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

// Guard is the daemon's side of the guard process. It replaces a guard process
// that dies.
type Guard struct {
	failed func(error) // called when the process cannot be restarted

	mu          sync.Mutex
	socket      int // -1: there is no process
	proc        *os.Process
	connections map[uint64]fusedev.Connection
	last        uint64
	closed      bool
	done        sync.WaitGroup
}

// Start starts the guard process. If that process dies and cannot be replaced,
// Guard calls failed from another goroutine.
func Start(failed func(error)) (*Guard, error) {
	g := &Guard{failed: failed, socket: -1, connections: map[uint64]fusedev.Connection{}}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g, g.start()
}

// start starts a process and sends it all connections. The caller holds mu.
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
	for id, c := range g.connections {
		g.send(id, c)
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

// Add makes the guard abort c when the daemon exits. remove cancels that. c
// must stay open until then.
func (g *Guard) Add(c fusedev.Connection) (remove func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last++
	id := g.last
	g.connections[id] = c
	g.send(id, c)
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.connections, id)
		g.send(id, fusedev.Connection{})
	})
}

// send sends one message. If the guard process does not take it, send kills
// that process; its replacement gets all connections. The caller holds mu.
func (g *Guard) send(id uint64, c fusedev.Connection) {
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

// Close closes the socket and waits for the guard process, which aborts the
// remaining connections.
func (g *Guard) Close() {
	g.mu.Lock()
	g.closed = true
	if g.socket >= 0 {
		unix.Close(g.socket)
	}
	g.mu.Unlock()
	g.done.Wait()
}
