package viewer

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs"
	"github.com/scopefs/scopefs/scope"
)

// The daemon and a view speak over a socket pair, one JSON message a line.
// What the daemon reads comes from a process that an agent may have broken:
// it is bounded, and says nothing about who sends it.

// maxLine bounds a message in bytes.
const maxLine = 4 << 20

// Config is the first message to a view.
type Config struct {
	Policy      scope.PolicySpec `json:"policy"`
	Record      scope.Record     `json:"record"`
	Passthrough bool             `json:"passthrough"` // the kernel may do the file data, if it can
	Mediated    bool             `json:"mediated"`
	Caller      bool             `json:"caller"` // identity: caller
	Timeout     time.Duration    `json:"timeout"`
	Watch       bool             `json:"watch"`  // keep metadata for as long as nobody else changes it
	Shared      bool             `json:"shared"` // others than the agent's user come in
	XAttrs      bool             `json:"xattrs"`
	Trace       bool             `json:"trace"`
	Spin        bool             `json:"spin"` // time on a processor is not counted
	Limits      fs.Limits        `json:"limits"`
}

// ToView is a message from the daemon.
type ToView struct {
	Config *Config           `json:"config,omitempty"`
	Policy *scope.PolicySpec `json:"policy,omitempty"` // a new policy; answered by an ack of ID
	Log    *string           `json:"log,omitempty"`    // the log fails, and why; empty: it works
	ID     uint64            `json:"id,omitempty"`     // the message this answers
	Error  string            `json:"error,omitempty"`
	Groups []uint32          `json:"groups,omitempty"`
}

// FromView is a message from a view.
type FromView struct {
	Ready  []string     `json:"ready,omitempty"` // confined, by these means, and about to serve
	Failed string       `json:"failed,omitempty"`
	ID     uint64       `json:"id,omitempty"`
	Event  *audit.Event `json:"event,omitempty"`  // to be recorded, with what follows; answered with ID
	Path   []byte       `json:"path,omitempty"`   // of the event: JSON strings hold no other bytes than UTF-8
	Target []byte       `json:"target,omitempty"` // likewise
	Groups uint32       `json:"groups,omitempty"` // the groups of this process are wanted; answered with ID
	Ack    uint64       `json:"ack,omitempty"`    // the policy of this ID holds
}

// Wire sends and receives messages. Send may be called by several goroutines.
type Wire struct {
	mu sync.Mutex
	w  io.Writer
	r  *bufio.Scanner
}

// NewWire returns a Wire over a stream.
func NewWire(rw io.ReadWriter) *Wire {
	r := bufio.NewScanner(rw)
	r.Buffer(make([]byte, 0, 4<<10), maxLine)
	return &Wire{w: rw, r: r}
}

// Send writes one message.
func (w *Wire) Send(msg any) error {
	line, err := json.Marshal(msg)
	if err != nil {
		return err
	}
	if len(line) >= maxLine {
		return fmt.Errorf("message of %d bytes is too long", len(line))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err = w.w.Write(append(line, '\n'))
	return err
}

// Receive reads one message; io.EOF when the other side is gone.
func (w *Wire) Receive(msg any) error {
	if !w.r.Scan() {
		if err := w.r.Err(); err != nil {
			return err
		}
		return io.EOF
	}
	return json.Unmarshal(w.r.Bytes(), msg)
}
