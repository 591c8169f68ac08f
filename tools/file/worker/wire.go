package worker

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/scopefs/scopefs/tools"
)

const (
	maxFrame = 8 << 20 // bytes of a frame, either way
	maxCalls = 16      // requests in flight; more wait in the daemon
	parts    = 3       // of a frame
	prefix   = 4 * parts
)

const (
	// opCancel cancels the request of its id. It has no reply of its own.
	opCancel = "cancel"
	// opPing is answered by the thread that reads.
	opPing = "ping"
)

var errFrame = errors.New("frame out of bounds")

// Request is one operation for the worker.
type Request struct {
	Call string          `json:"call,omitempty"` // the name of the thread that handles it
	Op   string          `json:"op"`             // the name of the operation
	Args json.RawMessage `json:"-"`              // one JSON value
	Blob []byte          `json:"-"`              // bytes beside the arguments

	Approved map[string]tools.Object `json:"approved,omitempty"` // the objects that it may act on, by path

	Temp  string `json:"temp,omitempty"`  // the token of its temporary file
	Quick bool   `json:"quick,omitempty"` // the change need not be on the disk before the reply
}

// request is a Request in a frame.
type request struct {
	ID uint64 `json:"id"`
	Request
}

func (r *request) frame() ([]byte, error) { return frame(r, r.Args, r.Blob) }

// Reply is the worker's reply to a Request: a result or an error.
type Reply struct {
	Result json.RawMessage `json:"-"` // one JSON value
	Blob   []byte          `json:"-"` // bytes beside the result
	Error  *tools.Error    `json:"error,omitempty"`
}

// reply is a Reply in a frame.
type reply struct {
	ID uint64 `json:"id"`
	Reply
}

func (r *reply) frame() ([]byte, error) { return frame(r, r.Result, r.Blob) }

// frame returns a message as it is written: the lengths of its parts as little-endian
// words of 32 bits, a JSON header, a JSON value, raw bytes.
func frame(header any, value, blob []byte) ([]byte, error) {
	head, err := json.Marshal(header)
	if err != nil {
		return nil, err
	}
	size := len(head) + len(value) + len(blob)
	if size > maxFrame {
		return nil, errFrame
	}
	b := make([]byte, 0, prefix+size)
	for _, part := range [parts][]byte{head, value, blob} {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(part)))
	}
	return append(append(append(b, head...), value...), blob...), nil
}

// readFrame reads one frame into header and returns the parts beside it. At the end
// between two frames the error is io.EOF.
func readFrame(r *bufio.Reader, header any) (value, blob []byte, err error) {
	var p [prefix]byte
	if _, err := io.ReadFull(r, p[:]); err != nil {
		return nil, nil, err
	}
	var ends [parts]uint64
	size := uint64(0)
	for i := range ends {
		size += uint64(binary.LittleEndian.Uint32(p[4*i:]))
		ends[i] = size
	}
	if size > maxFrame {
		return nil, nil, errFrame
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, nil, fmt.Errorf("frame: %w", io.ErrUnexpectedEOF)
	}
	if err := Strict(b[:ends[0]], header); err != nil {
		return nil, nil, fmt.Errorf("frame: %w", err)
	}
	return b[ends[0]:ends[1]:ends[1]], b[ends[1]:], nil
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
