package worker

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
)

const (
	maxFrame = 8 << 20 // bytes of a message
	maxCalls = 16      // requests in flight; more wait in the daemon
)

const (
	// opCancel cancels the request of its id. It has no reply of its own.
	opCancel = "cancel"
	// opPing is answered by the thread that reads.
	opPing = "ping"
)

// Request is one operation for the worker.
type Request struct {
	Call string          `json:"call,omitempty"` // the name of the thread that handles it
	Op   string          `json:"op"`             // the name of the operation
	Args json.RawMessage `json:"-"`              // one JSON value
	Blob []byte          `json:"-"`              // bytes beside the arguments

	Approved map[string]approvals.Object `json:"approved,omitempty"` // the objects that it may act on, by path

	Temp  string `json:"temp,omitempty"`  // the token of its temporary file
	Quick bool   `json:"quick,omitempty"` // the change need not be on the disk before the reply
}

// requestFrame is a Request in a frame.
type requestFrame struct {
	ID uint64 `json:"id"`
	Request
}

// Reply is the worker's reply to a Request: a result or an error.
type Reply struct {
	Result json.RawMessage `json:"-"` // one JSON value
	Blob   []byte          `json:"-"` // bytes beside the result
	Error  *tools.Error    `json:"error,omitempty"`
}

// replyFrame is a Reply in a frame.
type replyFrame struct {
	ID uint64 `json:"id"`
	Reply
}

// send writes a message as one frame: a JSON header, a JSON value, raw bytes.
func send(w *peer.Writer, header any, value, blob []byte) error {
	head, err := json.Marshal(header)
	if err != nil {
		return err
	}
	return w.Write(head, value, blob)
}

// receive reads a message. At the end of the stream between two the error is io.EOF.
func receive(r *peer.Reader, header any, value *json.RawMessage, blob *[]byte) error {
	var head []byte
	if err := r.Read(&head, (*[]byte)(value), blob); err != nil {
		return err
	}
	if err := peer.Decode(head, header); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	return nil
}

// knownCodes are the codes that a worker may reply with.
var knownCodes = map[tools.Code]bool{
	tools.OutsideScope: true, tools.Denied: true, tools.NotFound: true, tools.Conflict: true,
	tools.TooLarge: true, tools.Invalid: true, tools.Internal: true,
}

// trusted returns an error of the worker with the fields that the daemon accepts, or
// an error that ends the worker.
func trusted(e *tools.Error) error {
	const longest = 8 << 10 // bytes of each text
	if !knownCodes[e.Code] || len(e.Message) > longest || len(e.Path) > longest || len(e.Hint) > longest || e.ApprovalID != "" {
		return errors.New("file worker: not an error that it may give")
	}
	return &tools.Error{Code: e.Code, Message: e.Message, Path: e.Path, Hint: e.Hint}
}
