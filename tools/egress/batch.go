package egress

import (
	"context"
	"net"
	"os"
	"sync"
	"time"
)

// batch is a connection below a TLS server. It joins the records that the server writes:
// crypto/tls has one write(2) for each record of 16 KiB. A goroutine writes all pending bytes
// with one call while the server encrypts more. The goroutine and the buffers exist only while
// bytes are pending.
//
// Write returns before its bytes are written. It blocks while [batchSize] bytes are pending and
// as many are being written. An error of the goroutine is the error of each later Write.
type batch struct {
	net.Conn
	stop func() bool // of the cut at the end of newBatch's context

	mu      sync.Mutex
	changed sync.Cond    // pending, busy or err
	pending *batchBuffer // for the next call; nil: none
	busy    bool         // flush runs
	err     error        // of each Write from now on
}

// batchSize limits the bytes of one call.
const batchSize = 64 << 10

type batchBuffer struct {
	n     int
	bytes [batchSize]byte
}

var batchBuffers = sync.Pool{New: func() any { return new(batchBuffer) }}

// flushLimit is how long Close waits for pending bytes at most.
const flushLimit = 2 * time.Second

// newBatch returns a batch above c. The end of ctx closes c at once, whatever is pending.
func newBatch(ctx context.Context, c net.Conn) *batch {
	b := &batch{Conn: c, stop: context.AfterFunc(ctx, func() { c.Close() })}
	b.changed.L = &b.mu
	return b
}

func (b *batch) Write(p []byte) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n < len(p) {
		for b.err == nil && b.pending != nil && b.pending.n == batchSize {
			b.changed.Wait()
		}
		if b.err != nil {
			return n, b.err
		}
		if b.pending == nil {
			b.pending = batchBuffers.Get().(*batchBuffer)
		}
		m := copy(b.pending.bytes[b.pending.n:], p[n:])
		b.pending.n += m
		n += m
		if !b.busy {
			b.busy = true
			go b.flush()
		}
	}
	return n, nil
}

// flush writes pending bytes until none are left.
func (b *batch) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.pending != nil {
		buf := b.pending
		b.pending = nil
		b.changed.Broadcast()
		b.mu.Unlock()
		_, err := b.Conn.Write(buf.bytes[:buf.n])
		buf.n = 0
		batchBuffers.Put(buf)
		b.mu.Lock()
		if err != nil {
			b.fail(err)
			b.pending = nil
		}
	}
	b.busy = false
	b.changed.Broadcast()
}

// fail makes err the error of each later Write, unless there is one.
func (b *batch) fail(err error) {
	if b.err == nil {
		b.err = err
	}
	b.changed.Broadcast()
}

// SetWriteDeadline sets the deadline of the connection. crypto/tls sets one in the past after
// the last record, which may be pending: it fails each Write at once, and the pending bytes
// after flushLimit.
func (b *batch) SetWriteDeadline(t time.Time) error {
	if now := time.Now(); !t.IsZero() && !t.After(now) {
		b.mu.Lock()
		b.fail(os.ErrDeadlineExceeded)
		b.mu.Unlock()
		t = now.Add(flushLimit)
	}
	return b.Conn.SetWriteDeadline(t)
}

func (b *batch) SetDeadline(t time.Time) error {
	if err := b.Conn.SetReadDeadline(t); err != nil {
		return err
	}
	return b.SetWriteDeadline(t)
}

// Close closes the connection when its pending bytes are written or flushLimit has passed. Close
// of the connection below drops them.
func (b *batch) Close() error {
	b.mu.Lock()
	b.fail(net.ErrClosed)
	if b.busy {
		_ = b.Conn.SetWriteDeadline(time.Now().Add(flushLimit)) // it fails on a closed connection alone
	}
	for b.busy {
		b.changed.Wait()
	}
	b.mu.Unlock()
	b.stop()
	return b.Conn.Close()
}
