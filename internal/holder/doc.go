// Package holder is the process that outlives a daemon, and the daemon's side of it.
//
// The holder keeps descriptors: for each FUSE connection the one that aborts it, and for a view that may live on also its
// control socket, its pidfd and its standard error. When the daemon is gone, however it ended, the holder aborts at once what
// is only guarded. A view killed together with the daemon may not exit by itself: if one of its threads is in write(2) and waits
// for a directory lock, it keeps /dev/fuse open, and the client that holds the lock waits for the view's response. Neither
// reacts to SIGKILL; only an abort of the connection frees them (Documentation/filesystems/fuse.rst, "Aborting a filesystem
// connection").
//
// What is held lives on for the grace time of scopefs.yaml. Meanwhile the holder has a heartbeat with each view, and
// ends one that is killed, stopped or deadlocked: a client gets an answer or an error within two seconds. Nobody waits for
// process 1 of a sandbox, which has no heartbeat; the next daemon records the end of one that has ended meanwhile. That
// daemon connects to the socket of the run directory, proves that it has the lock of that directory, and receives the
// descriptors. Without a next daemon the holder ends all.
//
// The holder opens no path and decides nothing about views. A daemon whose holder dies starts another one and sends it all
// descriptors again. If both die, the control sockets close, and views exit.
package holder

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/descriptors"
)

// Protocol is the number of the messages between a daemon and a holder. An older daemon than the holder is refused.
const Protocol = 1

// Oldest is the first number of the holders from which a daemon takes over: the last two.
const Oldest = 1

// The descriptors of a holder process.
const (
	socketFD = 3 // its end of a socket pair with the daemon that started it
	listenFD = 4 // the socket of the run directory, bound; only with message.Socket
)

// An op is what a message is about.
type op string

const (
	// From a daemon.
	opStart   op = "start"   // to a new holder, first: Grace, Lock, Socket
	opHello   op = "hello"   // to a holder that is there, first: Protocol, Oldest, and the descriptor of the lock
	opAdd     op = "add"     // keep an item, in place of that with the ID
	opRemove  op = "remove"  // of an item
	opSettled op = "settled" // all is taken over: the next loss of a daemon starts a new grace time
	opEnd     op = "end"     // end everything

	// From a holder to the next daemon.
	opItem    op = "item"    // what it keeps
	opItems   op = "items"   // that was all
	opRefused op = "refused" // Text says why

	// From scopefs daemon --stop to a holder, and from there to the daemon.
	opStop op = "stop"
)

// message is one packet. An item has descriptors: with Abort the abort file of its connection first, then those of Place.Hold.
type message struct {
	Op       op              `json:"op"`
	ID       uint64          `json:"id,omitempty"`
	Dir      string          `json:"dir,omitempty"`   // the mount point of the connection
	Abort    bool            `json:"abort,omitempty"` // the first descriptor is the abort file
	Kind     Kind            `json:"kind,omitempty"`
	Hold     bool            `json:"hold,omitempty"` // it outlives the daemon
	PID      int             `json:"pid,omitempty"`  // with Hold: the process
	Meta     json.RawMessage `json:"meta,omitempty"` // of the daemon, about what is held
	Protocol int             `json:"protocol,omitempty"`
	Oldest   int             `json:"oldest,omitempty"`
	Grace    time.Duration   `json:"grace,omitempty"`
	Socket   string          `json:"socket,omitempty"` // where ListenFD is bound; the holder removes it at its end
	Lock     fileID          `json:"lock,omitzero"`
	Text     string          `json:"text,omitempty"`
	Older    bool            `json:"older,omitempty"` // with opRefused: the daemon is older than the holder
}

// fileID identifies the lock file of the run directory, as long as somebody has it open.
type fileID struct{ Dev, Ino uint64 }

func idOf(fd int) (fileID, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return fileID{st.Dev, st.Ino}, err
}

// A Kind says what a daemon keeps.
type Kind string

// The kinds.
const (
	View    Kind = ""
	Sandbox Kind = "sandbox" // process 1, without a connection and a heartbeat
	Tunnels Kind = "tunnels" // the process of tunnels, without a connection
	Command Kind = "command" // likewise, of the sandbox that the command is in
	Web     Kind = "web"     // the sessions over HTTP, without a process
	Context Kind = "context" // the process of /context, of the sandbox that the mount is in
)

// beats reports whether there is a heartbeat.
func (k Kind) beats() bool { return k == View || k == Tunnels || k == Context }

// files returns how many descriptors there are at least.
func (k Kind) files() int {
	switch {
	case k == Web:
		return 0
	case k.beats():
		return Files
	}
	return PIDFD + 1
}

const (
	maxMessage = 64 << 10 // bytes
	maxFiles   = 8        // descriptors in a message
)

// send sends one message. flags are those of sendmsg(2).
func send(fd int, msg message, files []*os.File, flags int) error {
	text, err := json.Marshal(msg)
	if err != nil {
		return err
	}
	if len(text) > maxMessage {
		return fmt.Errorf("message of %d bytes: %d at most", len(text), maxMessage)
	}
	control, err := descriptors.Control(files...)
	if err != nil {
		return err
	}
	for {
		if err = unix.Sendmsg(fd, text, control, nil, unix.MSG_NOSIGNAL|flags); err != unix.EINTR {
			return err
		}
	}
}

var errClosed = errors.New("the other end is closed")

// receive reads one message. The caller closes the files.
func receive(fd int) (msg message, files []*os.File, err error) {
	buf, control := make([]byte, maxMessage), descriptors.Room(maxFiles)
	n, ncontrol, flags := 0, 0, 0
	for {
		n, ncontrol, flags, _, err = unix.Recvmsg(fd, buf, control, unix.MSG_CMSG_CLOEXEC)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return msg, nil, err
	}
	files, err = descriptors.Files(control[:ncontrol], "held")
	switch {
	case err != nil:
	case n == 0:
		err = errClosed
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = errors.New("message too large")
	default:
		err = json.Unmarshal(buf[:n], &msg)
	}
	if err != nil {
		descriptors.Close(files)
		return message{}, nil, err
	}
	return msg, files, nil
}

// The descriptors of what is held, in this order. More are the daemon's.
const (
	PIDFD = iota // pidfd of the process that serves the connection, opened with PIDFD_NONBLOCK
	Heart        // socket pair to that process, not blocking: see heart.Heart. A sandbox has none
	Files        // how many a view has at least
)

// Kill kills the process of a pidfd.
func Kill(pidfd *os.File) {
	if raw, err := pidfd.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	}
}
