// Package message is what the daemon and the worker of the file tools say to each other, and what both understand by it: the
// arguments and results of operations, paths, patterns, diffs and errors. It imports neither end.
package message

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/scopefs/scopefs/internal/peer"
)

// Limits of the pipes.
const (
	MaxFrame = 8 << 20 // bytes of a message
	MaxCalls = 16      // requests in flight; more wait in the daemon

	// StopTime bounds the end of a cancelled request. A worker that takes longer is
	// killed: nothing of a call happens after its end.
	StopTime = 5 * time.Second
)

// Operations of the transport.
const (
	// OpCancel cancels the request of its id. It has no reply of its own.
	OpCancel = "cancel"
	// OpPing is answered by the thread that reads.
	OpPing = "ping"
)

// Request is one operation for the worker.
type Request struct {
	Call string          `json:"call,omitempty"` // the name of the thread that handles it
	Op   string          `json:"op"`             // the name of the operation
	Args json.RawMessage `json:"-"`              // one JSON value
	Blob []byte          `json:"-"`              // bytes beside the arguments

	Approved map[string]Object `json:"approved,omitempty"` // the objects that it may act on, by path

	Temp  string `json:"temp,omitempty"`  // the token of its temporary file
	Quick bool   `json:"quick,omitempty"` // the change need not be on the disk before the reply
}

// RequestFrame is a Request in a frame.
type RequestFrame struct {
	ID uint64 `json:"id"`
	Request
}

// Reply is the worker's reply to a Request: a result or an error.
type Reply struct {
	Result json.RawMessage `json:"-"` // one JSON value
	Blob   []byte          `json:"-"` // bytes beside the result
	Error  *Error          `json:"error,omitempty"`
}

// ReplyFrame is a Reply in a frame.
type ReplyFrame struct {
	ID uint64 `json:"id"`
	Reply
}

// Send writes a message as one frame: a JSON header, a JSON value, raw bytes.
func Send(w *peer.Writer, header any, value, blob []byte) error {
	head, err := json.Marshal(header)
	if err != nil {
		return err
	}
	return w.Write(head, value, blob)
}

// Receive reads a message. At the end of the stream between two the error is io.EOF.
func Receive(r *peer.Reader, header any, value *json.RawMessage, blob *[]byte) error {
	var head []byte
	if err := r.Read(&head, (*[]byte)(value), blob); err != nil {
		return err
	}
	if err := peer.Decode(head, header); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	return nil
}

// Object is the object that a path led to when its call was approved: see approvals.Object.
type Object struct {
	Path string `json:"path"`
	ID   string `json:"id,omitempty"`
}
