package contextfs

import (
	"encoding/json"

	"github.com/scopefs/scopefs/internal/peer"
)

// The daemon and the process exchange frames of two parts: a JSON message, and the content of files. Processes of an agent
// send requests to the process and may have compromised it, so the daemon bounds what it reads and believes nothing of it.

// These bound frames, in bytes.
const (
	maxToServer   = 32 << 20 // the files of one call
	maxFromServer = 4 << 10
)

// toServer is a message from the daemon.
type toServer struct {
	Config *config `json:"config,omitempty"` // the first message

	ID    uint64  `json:"id,omitempty"`    // the ID of the request that this answers
	Late  bool    `json:"late,omitempty"`  // with ID: the daemon does not know the thread's call yet
	Files uint64  `json:"files,omitempty"` // with ID: the thread's files; 0: none
	New   []entry `json:"new,omitempty"`   // with Files, the first time: what they are

	Drop uint64 `json:"drop,omitempty"` // the files of a call that has ended
}

type config struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// entry is one file. Its content follows that of the entries before it, in the second part of the frame.
type entry struct {
	Name string `json:"name"`
	Size int    `json:"size"`
}

// fromServer is a message from the process.
type fromServer struct {
	Ready  []string `json:"ready,omitempty"` // it is confined, by these measures, and about to serve
	Failed string   `json:"failed,omitempty"`

	ID      uint64 `json:"id,omitempty"`      // the daemon responds with ID
	TID     uint32 `json:"tid,omitempty"`     // a thread that has sent a request
	Refused bool   `json:"refused,omitempty"` // its request was for a file of another call
}

func send(w *peer.Writer, msg any, content []byte) error {
	text, err := json.Marshal(msg)
	if err != nil {
		return err
	}
	return w.Write(text, content)
}

func receive(r *peer.Reader, msg any) (content []byte, err error) {
	var text []byte
	if err := r.Read(&text, &content); err != nil {
		return nil, err
	}
	return content, peer.Decode(text, msg)
}
