// Package wire has the messages between a daemon and the process that serves /context, and the descriptors of that process.
package wire

import (
	"encoding/json"
	"time"

	"github.com/scopefs/scopefs/internal/peer"
)

// The daemon and the process exchange frames of two parts: a JSON message, and the content of files. Processes of an agent
// send requests to the process and may have compromised it, so the daemon bounds what it reads and believes nothing of it.

// The descriptors that the daemon passes to the process, beside those of package reconnect.
const (
	FuseFD  = 3 + iota // /dev/fuse, mounted
	WireFD             // socket pair to the daemon
	HeartFD            // non-blocking socket pair to the daemon: see heart.Heart
)

// These bound frames, in bytes.
const (
	MaxToServer   = 32 << 20 // the files of one call
	MaxFromServer = 4 << 10
)

// ToServer is a message from the daemon.
type ToServer struct {
	Config *Config `json:"config,omitempty"` // the first message

	ID    uint64  `json:"id,omitempty"`    // the ID of the request that this answers
	Late  bool    `json:"late,omitempty"`  // with ID: the daemon does not know the thread's call yet
	Files string  `json:"files,omitempty"` // with ID: the thread's files, by their call; "": none
	New   []Entry `json:"new,omitempty"`   // with Files, the first time: what they are

	Drop string `json:"drop,omitempty"` // the call, which has ended
}

// Config is the first message of a daemon, to a process that it has started or taken over.
type Config struct {
	UID   uint32        `json:"uid"`
	GID   uint32        `json:"gid"`
	Grace time.Duration `json:"grace,omitempty"` // how long the process goes on without this daemon
	Keep  []string      `json:"keep,omitempty"`  // the calls of the last daemon that go on: the process drops the files of others
}

// Entry is one file. Its content follows that of the entries before it, in the second part of the frame.
type Entry struct {
	Name string `json:"name"`
	Size int    `json:"size"`
}

// FromServer is a message from the process.
type FromServer struct {
	Ready  []string `json:"ready,omitempty"` // it is confined, by these measures, and about to serve
	Failed string   `json:"failed,omitempty"`
	Over   bool     `json:"over,omitempty"` // the mount is attached nowhere any more

	ID      uint64 `json:"id,omitempty"`      // the daemon responds with ID
	TID     uint32 `json:"tid,omitempty"`     // a thread that has sent a request
	Refused bool   `json:"refused,omitempty"` // its request was for a file of another call
}

// Send writes one message with content.
func Send(w *peer.Writer, msg any, content []byte) error {
	text, err := json.Marshal(msg)
	if err != nil {
		return err
	}
	return w.Write(text, content)
}

// Receive reads one message. It returns io.EOF when the other end is closed.
func Receive(r *peer.Reader, msg any) (content []byte, err error) {
	var text []byte
	if err := r.Read(&text, &content); err != nil {
		return nil, err
	}
	return content, peer.Decode(text, msg)
}
