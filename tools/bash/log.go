package bash

import (
	"io"
	"sort"
	"sync"
)

// stream selects an output stream of a command.
type stream int

const (
	stdout stream = iota
	stderr
	both // both streams, in the order in which the daemon read them
)

// maxRuns bounds the runs of a log. At the bound the oldest quarter is dropped,
// and the stream both then begins after it.
const maxRuns = 16 << 10

// log is the output of a command.
type log struct {
	mu        sync.Mutex
	streams   [2]output
	runs      []run
	size      int64 // bytes of both streams
	open      int   // streams without EOF
	discarded bool
	changed   chan struct{} // closed at the next change; nil without a waiter
}

// run is a consecutive part of the log from one stream. It ends where the next
// run begins.
type run struct {
	stream stream
	at     int64 // offset in the log
	from   int64 // offset in the stream
}

// collect copies a stream to the log until EOF or a read error, and closes r.
func (l *log) collect(s stream, r io.ReadCloser) {
	defer r.Close()
	buf := make([]byte, chunkSize)
	for {
		n, err := r.Read(buf)
		l.write(s, buf[:n])
		if err != nil {
			break
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	l.notify()
}

func (l *log) write(s stream, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.discarded || len(p) == 0 {
		return
	}
	o := &l.streams[s]
	if n := len(l.runs); n == 0 || l.runs[n-1].stream != s {
		if n == maxRuns {
			l.runs = append(l.runs[:0], l.runs[n/4:]...)
		}
		l.runs = append(l.runs, run{s, l.size, o.size})
	}
	o.write(p)
	l.size += int64(len(p))
	l.notify()
}

func (l *log) notify() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// change returns a channel that is closed at the next write or end of a stream.
func (l *log) change() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

func (l *log) isOpen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open > 0
}

func (l *log) length(s stream) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s == both {
		return l.size
	}
	return l.streams[s].size
}

// page returns up to n bytes of a stream and their offset. The offset is larger
// than off when the bytes at off are no longer kept.
func (l *log) page(s stream, off int64, n int) (p []byte, at int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at = min(off, l.size)
	if s != both {
		at = min(off, l.streams[s].size)
	}
	for len(p) < n {
		more, begin := l.piece(s, at+int64(len(p)), n-len(p))
		if len(p) > 0 && begin > at+int64(len(p)) {
			break
		}
		if len(p) == 0 {
			at = begin
		}
		if len(more) == 0 {
			break
		}
		p = append(p, more...)
	}
	return p, at
}

// piece returns consecutive bytes of a page, as output.piece does. The caller
// holds l.mu.
func (l *log) piece(s stream, off int64, n int) (p []byte, at int64) {
	if s != both {
		return l.streams[s].piece(off, n)
	}
	i := max(sort.Search(len(l.runs), func(i int) bool { return l.runs[i].at > off })-1, 0)
	for ; i < len(l.runs); i++ {
		r, end := l.runs[i], l.size
		if i+1 < len(l.runs) {
			end = l.runs[i+1].at
		}
		off = max(off, r.at)
		p, from := l.streams[r.stream].piece(r.from+off-r.at, n)
		if off = r.at + from - r.from; off < end && len(p) > 0 {
			return p[:min(int64(len(p)), end-off)], off
		}
		off = end
	}
	return nil, off
}

// discard frees the memory. Later writes are dropped.
func (l *log) discard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.discarded, l.runs, l.size = true, nil, 0
	for i := range l.streams {
		l.streams[i].discard()
	}
}
