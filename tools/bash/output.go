package bash

import "sync/atomic"

const (
	chunkSize = 32 << 10
	maxStream = 4 << 20  // bytes kept per stream of a command
	maxKept   = 64 << 20 // bytes kept per Shell, beyond three chunks per stream
)

// budget counts the bytes of output that a Shell may still keep.
type budget struct{ free atomic.Int64 }

func (b *budget) take() bool {
	if b.free.Add(-chunkSize) >= 0 {
		return true
	}
	b.free.Add(chunkSize)
	return false
}

// output keeps the first chunk and the latest chunks of a stream.
type output struct {
	budget *budget
	taken  int      // chunks charged to budget
	chunks [][]byte // all but the last are full
	rest   int64    // offset of chunks[1]
	size   int64    // bytes written, kept or not
}

func (o *output) write(p []byte) {
	o.size += int64(len(p))
	for len(p) > 0 {
		last := len(o.chunks) - 1
		if last < 0 || len(o.chunks[last]) == chunkSize {
			o.extend()
			continue
		}
		n := min(chunkSize-len(o.chunks[last]), len(p))
		o.chunks[last] = append(o.chunks[last], p[:n]...)
		p = p[n:]
	}
}

// extend adds a chunk. At maxStream, or without budget, it reuses the oldest chunk
// after the first. The first three chunks are free of charge, so that a full chunk
// always precedes the last.
func (o *output) extend() {
	var chunk []byte
	switch n := len(o.chunks); {
	case n == 0:
		o.rest = chunkSize
	case n < 3:
	case n < maxStream/chunkSize && o.budget.take():
		o.taken++
	default:
		chunk = o.chunks[1][:0]
		o.chunks = append(o.chunks[:1], o.chunks[2:]...)
		o.rest += chunkSize
	}
	o.chunks = append(o.chunks, chunk)
}

// piece returns up to n consecutive bytes at off, or at the next offset that is
// kept, and their offset. At the end it returns none. They are valid until the
// next write.
func (o *output) piece(off int64, n int) (p []byte, at int64) {
	if off >= chunkSize && off < o.rest {
		off = o.rest
	}
	if off >= o.size {
		return nil, off
	}
	p = o.chunks[0]
	if off < chunkSize {
		p = p[off:]
	} else {
		p = o.chunks[1+(off-o.rest)/chunkSize][(off-o.rest)%chunkSize:]
	}
	return p[:min(n, len(p))], off
}

func (o *output) discard() {
	o.budget.free.Add(int64(o.taken) * chunkSize)
	*o = output{budget: o.budget}
}
