// Package wire has the messages between a daemon and the process that outlives it: see package holder.
package wire

import (
	"encoding/json"
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
	SocketFD = 3 // its end of a socket pair with the daemon that started it
	ListenFD = 4 // the socket of the run directory, bound; only with Message.Socket
)

// Op is what a message is about.
type Op string

// Messages of a daemon.
const (
	OpStart   Op = "start"   // to a new holder, first: Grace, Lock, Socket
	OpHello   Op = "hello"   // to a holder that is there, first: Protocol, Oldest, and the descriptor of the lock
	OpAdd     Op = "add"     // keep an item, in place of that with the ID
	OpRemove  Op = "remove"  // of an item
	OpSettled Op = "settled" // all is taken over: the next loss of a daemon starts a new grace time
	OpEnd     Op = "end"     // end everything
)

// Messages of a holder to the next daemon.
const (
	OpItem    Op = "item"    // what it keeps
	OpItems   Op = "items"   // that was all
	OpRefused Op = "refused" // Text says why
)

// OpStop is from scopefs daemon --stop to a holder, and from there to the daemon.
const OpStop Op = "stop"

// Message is one packet. An item has descriptors: with Abort the abort file of its connection first, then those of Place.Hold.
type Message struct {
	Op       Op              `json:"op"`
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
	Lock     FileID          `json:"lock,omitzero"`
	Text     string          `json:"text,omitempty"`
	Older    bool            `json:"older,omitempty"` // with OpRefused: the daemon is older than the holder
}

// FileID identifies the lock file of the run directory, as long as somebody has it open.
type FileID struct{ Dev, Ino uint64 }

// IDOf returns the identity of an open file.
func IDOf(fd int) (FileID, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return FileID{st.Dev, st.Ino}, err
}

// A Kind says what a daemon keeps.
type Kind string

// The kinds.
const (
	View    Kind = ""
	Sandbox Kind = "sandbox" // process 1, without a connection and a heartbeat
	Agent   Kind = "tunnels" // an agent's process, without a connection; holders of the last release know one of tunnels
	Command Kind = "command" // likewise, of the sandbox that the command is in
	Web     Kind = "web"     // the sessions over HTTP, without a process
	Context Kind = "context" // the process of /context, of the sandbox that the mount is in
)

// Beats reports whether there is a heartbeat.
func (k Kind) Beats() bool { return k == View || k == Agent || k == Context }

// Files returns how many descriptors there are at least.
func (k Kind) Files() int {
	switch {
	case k == Web:
		return 0
	case k.Beats():
		return Files
	}
	return PIDFD + 1
}

const (
	maxMessage = 64 << 10 // bytes
	maxFiles   = 8        // descriptors in a message
)

// Send sends one message. flags are those of sendmsg(2).
func Send(fd int, msg Message, files []*os.File, flags int) error {
	text, err := json.Marshal(msg)
	if err != nil {
		return err
	}
	if len(text) > maxMessage {
		return fmt.Errorf("message of %d bytes: %d at most", len(text), maxMessage)
	}
	fds, err := descriptors.Numbers(files...)
	if err != nil {
		return err
	}
	return descriptors.WriteTo(fd, text, flags, fds...)
}

// Receive reads one message, and returns io.EOF when the other end is closed. The caller closes the files.
func Receive(fd int) (msg Message, files []*os.File, err error) {
	text := make([]byte, maxMessage)
	n, fds, err := descriptors.ReadFrom(fd, text, maxFiles)
	if err != nil {
		return msg, nil, err
	}
	files = descriptors.Files(fds, "held")
	if err = json.Unmarshal(text[:n], &msg); err != nil {
		descriptors.Close(files)
		return Message{}, nil, err
	}
	return msg, files, nil
}

// Limit bounds each wait of a socket that blocks.
func Limit(fd int, limit time.Duration) error {
	bound := unix.NsecToTimeval(int64(limit))
	err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &bound)
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &bound)
	}
	return err
}

// Forever ends Limit for what the socket receives.
func Forever(fd int) error {
	return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{})
}

// FirstTime bounds the wait for the first message of a process that has connected.
const FirstTime = 2 * time.Second

// The descriptors of what is held, in this order. More are the daemon's.
const (
	PIDFD = iota // pidfd of the process that serves the connection, opened with PIDFD_NONBLOCK
	Heart        // socket pair to that process, not blocking: see heart.Heart. A sandbox has none
	Files        // how many a view has at least
)
