package mask

import "io"

// A Reader reads a stream, and passes on what is before the possible beginning of a text. A last byte that only encodes
// passes, too: it says nothing of a text, and somebody may wait for the end of a message.
type Reader struct {
	from    io.Reader
	mask    *Mask
	found   func() error
	decoder *decoder
	buf     []byte
	ready   []byte // to be returned; a part of buf, as held
	held    []byte // perhaps the beginning of a text
	passed  int    // bytes of held that have passed
	hit     int    // bytes of held that belong to a text that began before
	err     error
}

// NewReader returns a reader that has an asterisk for each byte of the texts. If found is not nil, the reader calls it
// in place of that, and ends with its error before the end of a text has passed.
func NewReader(from io.Reader, m *Mask, found func() error) *Reader {
	return &Reader{from: from, mask: m, found: found, decoder: m.decoder()}
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	for len(r.ready) == 0 && r.err == nil && len(p) > 0 {
		r.fill(len(p))
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	if len(r.ready) > 0 || n > 0 {
		return n, nil
	}
	return 0, r.err
}

func (r *Reader) fill(size int) {
	held := len(r.held)
	if want := held + max(size, 512); len(r.buf) < want {
		grown := make([]byte, want)
		copy(grown, r.held)
		r.buf = grown
	} else {
		copy(r.buf, r.held)
	}
	n, err := r.from.Read(r.buf[held:])
	data := r.buf[:held+n]
	found, n := r.mask.find(r.decoder, data, err != nil)
	if len(found) > 0 && r.found != nil {
		if wrong := r.found(); wrong != nil {
			r.held, r.err = nil, wrong
			return
		}
	}
	for _, s := range append(found, span{0, r.hit}) {
		if r.found == nil {
			s.star(data[:n])
		}
		r.hit = max(r.hit, s.to)
	}
	r.hit = max(0, r.hit-n)
	r.ready, r.held, r.err = data[min(n, r.passed):n], data[n:], err
	if n > 0 {
		r.passed = 0
	}
	if len(r.held) == 1 && r.passed == 0 && r.mask.onlyEncodes(r.held[0]) {
		r.ready, r.passed = data[len(data)-len(r.ready)-1:], 1
	}
}
