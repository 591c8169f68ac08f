package file

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
	// WorkerArg is the first argument of the program when it is to call Work.
	WorkerArg = "file-worker"

	maxFrame = 8 << 20 // bytes, either way
	maxCalls = 16      // at once; more wait in the daemon
	prefix   = 8       // bytes before a frame: the lengths of its two parts
)

const (
	// opCancel ends the request of its id. It has no reply of its own.
	opCancel = "cancel"
	// opPing is answered by the thread that reads.
	opPing = "ping"
)

var errFrame = errors.New("frame out of bounds")

// request is what the daemon asks. Args becomes JSON.
type request struct {
	ID   uint64 `json:"id"`
	Call string `json:"call,omitempty"` // the name of the thread that handles it
	Op   string `json:"op"`
	Args any    `json:"args,omitempty"`

	Approved map[string]tools.Object `json:"approved,omitempty"` // what it may act on

	Temp  string `json:"temp,omitempty"`  // the token of its temporary file
	Quick bool   `json:"quick,omitempty"` // the change need not be on the disk before the answer
}

// asked is a request as the worker reads it.
type asked struct {
	ID       uint64                  `json:"id"`
	Call     string                  `json:"call"`
	Op       string                  `json:"op"`
	Args     json.RawMessage         `json:"args"`
	Quick    bool                    `json:"quick"`
	Temp     string                  `json:"temp"`
	Approved map[string]tools.Object `json:"approved"`
	blob     []byte
}

// reply is what the worker says.
type reply struct {
	ID     uint64       `json:"id"`
	Result any          `json:"result,omitempty"`
	Error  *tools.Error `json:"error,omitempty"`
}

// answer is a reply as the daemon reads it.
type answer struct {
	ID     uint64          `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *tools.Error    `json:"error"`
	blob   []byte
}

// A carrier has a part that crosses as it is, beside the JSON.
type carrier interface {
	detach() []byte
	attach([]byte) error
}

// frame returns a message as it is written: the lengths of its parts as two
// little-endian words of 32 bits, JSON, raw bytes.
func frame(message any, blob []byte) ([]byte, error) {
	header, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	if len(header)+len(blob) > maxFrame {
		return nil, errFrame
	}
	b := make([]byte, prefix, prefix+len(header)+len(blob))
	binary.LittleEndian.PutUint32(b, uint32(len(header)))
	binary.LittleEndian.PutUint32(b[4:], uint32(len(blob)))
	return append(append(b, header...), blob...), nil
}

// readFrame reads one frame into message and returns the bytes beside it. At the
// end between two frames the error is io.EOF.
func readFrame(r *bufio.Reader, message any) (blob []byte, err error) {
	var p [prefix]byte
	if _, err := io.ReadFull(r, p[:]); err != nil {
		return nil, err
	}
	header, rest := binary.LittleEndian.Uint32(p[:]), binary.LittleEndian.Uint32(p[4:])
	if uint64(header)+uint64(rest) > maxFrame {
		return nil, errFrame
	}
	b := make([]byte, header+rest)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("frame: %w", io.ErrUnexpectedEOF)
	}
	if err := strict(b[:header], message); err != nil {
		return nil, fmt.Errorf("frame: %w", err)
	}
	return b[header:], nil
}

// knownCodes are those that a worker may answer with.
var knownCodes = map[tools.Code]bool{
	tools.OutsideScope: true, tools.Denied: true, tools.NotFound: true, tools.Conflict: true,
	tools.TooLarge: true, tools.Invalid: true, tools.Internal: true,
}

// told is an error of the worker, as far as it is believed.
func told(e *tools.Error) error {
	const longest = 8 << 10 // bytes of each text
	if !knownCodes[e.Code] || len(e.Message) > longest || len(e.Path) > longest || len(e.Hint) > longest || e.ApprovalID != "" {
		return errors.New("file worker: not an error that it may give")
	}
	return &tools.Error{Code: e.Code, Message: e.Message, Path: e.Path, Hint: e.Hint}
}
