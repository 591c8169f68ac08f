// Package peer is the protocol of a private pipe between two processes of ours: frames
// of bounded size, and a table of requests in flight.
//
// A frame is a fixed number of parts; both ends agree on the number and on a bound. The
// lengths of the parts, as little-endian words of 32 bits, come first. A [Writer] writes
// a frame in one piece and bounds the wait for an end that does not read. A [Reader]
// rejects a frame over the bound before it allocates memory for it.
//
// [Requests] matches replies with requests by id. It bounds the requests in flight: more
// wait. The other end may be hostile; an id of no request in flight is reported to the
// caller, who decides whether it ends the connection.
//
// [Decode] decodes a JSON value from the other end, strictly.
//
// Descriptors (unix(7), SCM_RIGHTS) need a socket that keeps message borders, which
// does without frames: see tools/sandbox/pid1 and package holder.
package peer

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// ErrTooLarge is the error of a frame over its bound.
var ErrTooLarge = errors.New("frame too large")

const (
	wordSize   = 4
	keptBuffer = 16 << 10 // bytes
)

// A Writer writes frames. Several goroutines may use it.
type Writer struct {
	max     int
	timeout time.Duration

	mu  sync.Mutex
	w   io.Writer
	buf []byte // reused for small frames
}

// NewWriter returns a Writer of frames with at most max bytes in their parts. timeout
// bounds a Write if w has SetWriteDeadline; 0 is no bound.
func NewWriter(w io.Writer, max int, timeout time.Duration) *Writer {
	return &Writer{w: w, max: max, timeout: timeout}
}

// Write writes a frame with these parts. After any error but [ErrTooLarge] a part of the
// frame may have been written: the connection is of no more use.
func (w *Writer) Write(parts ...[]byte) error {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	if size > w.max {
		return fmt.Errorf("%w: %d bytes", ErrTooLarge, size)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.buf
	if need := wordSize*len(parts) + size; need > cap(b) {
		if b = make([]byte, 0, need); need <= keptBuffer {
			w.buf = b
		}
	}
	for _, p := range parts {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
	}
	for _, p := range parts {
		b = append(b, p...)
	}
	if d, ok := w.w.(interface{ SetWriteDeadline(time.Time) error }); ok && w.timeout > 0 {
		_ = d.SetWriteDeadline(time.Now().Add(w.timeout))
	}
	_, err := w.w.Write(b)
	return err
}

// A Reader reads frames. One goroutine at a time may use it.
type Reader struct {
	max int
	in  *bufio.Reader
}

// NewReader returns a Reader of frames with at most max bytes in their parts.
func NewReader(r io.Reader, max int) *Reader {
	return &Reader{max, bufio.NewReaderSize(r, 16<<10)}
}

// Buffered reports whether bytes of the next frame have been read.
func (r *Reader) Buffered() bool { return r.in.Buffered() > 0 }

// Read reads a frame into parts. They share an array that is theirs. At the end of the
// stream between two frames the error is io.EOF, within a frame io.ErrUnexpectedEOF.
func (r *Reader) Read(parts ...*[]byte) error {
	var words [8 * wordSize]byte
	head := words[:wordSize*len(parts)]
	if _, err := io.ReadFull(r.in, head); err != nil {
		return err
	}
	size := uint64(0)
	for i := range parts {
		size += uint64(binary.LittleEndian.Uint32(head[wordSize*i:]))
	}
	if size > uint64(r.max) {
		return fmt.Errorf("%w: %d bytes", ErrTooLarge, size)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r.in, b); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	for i, p := range parts {
		n := binary.LittleEndian.Uint32(head[wordSize*i:])
		*p, b = b[:n:n], b[n:]
	}
	return nil
}
