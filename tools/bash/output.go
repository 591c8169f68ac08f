package bash

import (
	"sync/atomic"

	"github.com/scopefs/scopefs/tools/bash/tape"
)

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

// output is a stream. Its tape keeps the first chunk and the latest ones.
type output struct {
	tape   tape.Tape
	budget *budget
	taken  int   // chunks charged to budget
	rest   int64 // offset of what is kept after the first chunk
	size   int64 // bytes recorded, kept or not
}

// grow counts n more bytes on the tape, at most a chunk. The first three chunks are free of charge. At maxStream, or without
// budget, it calls forget with the oldest chunk after the first.
func (o *output) grow(n int, forget func(off int64)) {
	o.size += int64(n)
	o.rest = max(o.rest, chunkSize)
	for o.size-o.rest > int64(2+o.taken)*chunkSize {
		if o.taken < maxStream/chunkSize-3 && o.budget.take() {
			o.taken++
			continue
		}
		off := o.rest
		o.rest += chunkSize
		forget(off)
	}
}

// piece returns up to n consecutive bytes at off, or at the next offset that is
// kept, and their offset. At the end it returns none.
func (o *output) piece(off int64, n int) (p []byte, at int64) {
	if off >= chunkSize && off < o.rest {
		off = o.rest
	}
	end := o.size
	if off < chunkSize && o.rest > chunkSize {
		end = min(end, chunkSize)
	}
	if off >= end {
		return nil, off
	}
	p = make([]byte, min(int64(n), end-off))
	if _, err := o.tape.ReadAt(p, off); err != nil { // cannot happen: it is memory
		return nil, off
	}
	return p, off
}

// discard returns what was taken of the budget. The caller closes the tape.
func (o *output) discard() {
	o.budget.free.Add(int64(o.taken) * chunkSize)
	*o = output{budget: o.budget}
}
