package bash

import "sync/atomic"

const (
	chunkSize = 32 << 10
	maxStream = 4 << 20  // of each stream of a command this much is kept
	maxKept   = 64 << 20 // and this much of all, beside three chunks a stream
)

// budget is the memory that is left for output, in bytes.
type budget struct{ free atomic.Int64 }

func (b *budget) take() bool {
	if b.free.Add(-chunkSize) >= 0 {
		return true
	}
	b.free.Add(chunkSize)
	return false
}

// output is what a command writes to one stream: its first chunk, and the
// latest after it.
type output struct {
	budget *budget
	taken  int      // chunks of the budget
	chunks [][]byte // all but the last are full
	rest   int64    // the offset of chunks[1]
	size   int64    // of all that was written
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

// extend adds a chunk. Where there may be no more the oldest but the first goes;
// with three there is always a full one before the last.
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

// piece returns up to n bytes at an offset, or at the next that is kept. At the
// end it returns none. They are valid until the next write.
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
