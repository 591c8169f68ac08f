package egress

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// minMask is the length of the shortest secret that is masked, in bytes. A shorter
// one would match by chance.
const minMask = 8

// mask replaces texts by as many asterisks, so that no length changes.
type mask [][]byte

// newMask returns a mask of a value, as it is, in a URL and in JSON, and of the
// other texts that hold it.
func newMask(value string, others ...string) (m mask) {
	quoted, _ := json.Marshal(value) // cannot fail
	for _, text := range append([]string{value, url.QueryEscape(value), url.PathEscape(value), strings.Trim(string(quoted), `"`)}, others...) {
		if len(text) >= minMask && !slices.ContainsFunc(m, func(b []byte) bool { return string(b) == text }) {
			m = append(m, []byte(text))
		}
	}
	return m
}

// apply masks data in place.
func (m mask) apply(data []byte) {
	original := data
	for _, needle := range m {
		for at := 0; ; at++ {
			i := bytes.Index(original[at:], needle)
			if i < 0 {
				break
			}
			if &original[0] == &data[0] { // needles may overlap
				original = bytes.Clone(data)
			}
			at += i
			copy(data[at:], bytes.Repeat([]byte("*"), len(needle)))
		}
	}
}

func (m mask) text(s string) string {
	data := []byte(s)
	m.apply(data)
	return string(data)
}

func (m mask) header(h http.Header) {
	for name, values := range h {
		if m.inName(name) {
			delete(h, name)
		}
		for i := range values {
			values[i] = m.text(values[i])
		}
	}
}

// inName reports whether the name of a field has a needle. net/http changes the case of names.
func (m mask) inName(name string) bool {
	return slices.ContainsFunc(m, func(needle []byte) bool {
		return strings.Contains(strings.ToLower(name), strings.ToLower(string(needle)))
	})
}

// tail returns how many bytes at the end of data may be the beginning of a needle.
func (m mask) tail(data []byte) (n int) {
	for _, needle := range m {
		for k := min(len(needle)-1, len(data)); k > n; k-- {
			if bytes.HasSuffix(data, needle[:k]) {
				n = k
			}
		}
	}
	return n
}

// finder reads a stream, and passes on what is before the possible beginning of a
// needle. found changes the data, or ends the stream with an error.
type finder struct {
	io.Reader
	mask
	found func(data []byte) error
	buf   []byte
	ready []byte // to be returned; a part of buf, as held
	held  []byte // perhaps the beginning of a needle
	err   error
}

func (f *finder) Read(p []byte) (int, error) {
	for len(f.ready) == 0 && f.err == nil && len(p) > 0 {
		f.fill(len(p))
	}
	n := copy(p, f.ready)
	f.ready = f.ready[n:]
	if len(f.ready) > 0 || n > 0 {
		return n, nil
	}
	return 0, f.err
}

func (f *finder) fill(size int) {
	held := len(f.held)
	if want := held + max(size, 512); len(f.buf) < want {
		grown := make([]byte, want)
		copy(grown, f.held)
		f.buf = grown
	} else {
		copy(f.buf, f.held)
	}
	n, err := f.Reader.Read(f.buf[held:])
	data := f.buf[:held+n]
	if wrong := f.found(data); wrong != nil {
		f.held, f.err = nil, wrong
		return
	}
	keep := 0
	if err == nil {
		keep = f.tail(data)
	}
	f.ready, f.held, f.err = data[:len(data)-keep], data[len(data)-keep:], err
}
