package bash

import (
	"encoding/binary"
	"os"
	"sort"
	"sync"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/bash/tape"
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

// log is the output of a command. What it has in memory is on its tapes, too: see load.
type log struct {
	mu        sync.Mutex
	streams   [2]output
	index     tape.Tape // positions and runs: see mark
	dropped   int64     // runs before the first one
	runs      []run
	size      int64           // bytes of both streams
	read      [both + 1]int64 // by stream: where the next process_read starts
	open      int             // streams without EOF
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

// newLog returns an empty log, with new tapes.
func newLog(b *budget) (*log, error) {
	l := &log{open: len(log{}.streams)}
	for i := range l.streams {
		l.streams[i].budget = b
	}
	for _, t := range l.tapes() {
		var err error
		if *t, err = tape.New(); err != nil {
			l.discard()
			return nil, err
		}
	}
	return l, nil
}

// tapes returns the places of the tapes, in the order of the files of Keep.
func (l *log) tapes() []*tape.Tape {
	return []*tape.Tape{&l.streams[stdout].tape, &l.streams[stderr].tape, &l.index}
}

// The index begins with positions, little-endian words of 8 bytes, and has the runs from runsAt on, three words each.
const (
	markRead    = 0        // log.read
	markRest    = both + 1 // output.rest of the streams
	markDropped = markRest + 2
	marks       = markDropped + 1

	runsAt   = 4 << 10 // a page, which is never erased
	runBytes = 3 * 8
)

// mark stores a position in the index. The caller holds l.mu.
func (l *log) mark(i stream, value int64) {
	_, _ = l.index.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(value)), int64(i)*8) // memory
}

// markRun stores the last run in the index. The caller holds l.mu.
func (l *log) markRun() {
	r := l.runs[len(l.runs)-1]
	text := make([]byte, 0, runBytes)
	for _, word := range []int64{int64(r.stream), r.at, r.from} {
		text = binary.LittleEndian.AppendUint64(text, uint64(word))
	}
	_, _ = l.index.WriteAt(text, runsAt+(l.dropped+int64(len(l.runs)-1))*runBytes)
}

// load returns the log of the tapes that another daemon has left, which become the log's. That daemon may have been killed
// between any two steps.
func load(b *budget, files []*os.File) (*log, error) {
	l := &log{open: len(log{}.streams)}
	if len(files) != len(l.tapes()) {
		closeAll(files)
		return nil, tools.Errorf(tools.Internal, "%d tapes", len(files))
	}
	for i, t := range l.tapes() {
		*t = tape.Open(files[i])
	}
	head := make([]byte, marks*8)
	n, err := l.index.Length()
	if err == nil && n > 0 {
		_, err = l.index.ReadAt(head[:min(n, int64(len(head)))], 0)
	}
	if err != nil {
		return nil, err
	}
	word := func(text []byte, i stream) int64 { return int64(binary.LittleEndian.Uint64(text[i*8:])) }
	for i := range l.read {
		l.read[i] = word(head, stream(i))
	}
	l.dropped = word(head, markDropped)
	for i := range l.streams {
		o := &l.streams[i]
		o.budget, o.rest = b, word(head, markRest+stream(i))
		if o.size, err = o.tape.Size(); err != nil {
			return nil, err
		}
		o.grow(0, func(int64) { l.forget(stream(i)) })
		l.size += o.size
	}
	if n = n - runsAt - l.dropped*runBytes; n > 0 {
		text := make([]byte, min(n/runBytes, maxRuns)*runBytes)
		if _, err := l.index.ReadAt(text, runsAt+l.dropped*runBytes); err != nil {
			return nil, err
		}
		for ; len(text) > 0; text = text[runBytes:] {
			l.runs = append(l.runs, run{stream(word(text, 0)), word(text, 1), word(text, 2)})
		}
	}
	l.complete()
	return l, nil
}

// complete adds the runs of what was recorded and not counted yet.
func (l *log) complete() {
	end, last := int64(0), stdout
	if n := len(l.runs); n > 0 {
		r := l.runs[n-1]
		last, end = r.stream, r.at+l.streams[r.stream].size-r.from
	} else if size := l.streams[stdout].size; size > 0 {
		l.add(stdout, 0, 0)
		end = size
	}
	if other := 1 - last; end < l.size {
		l.add(other, end, l.streams[other].size-(l.size-end))
	}
}

// add adds a run. The caller holds l.mu.
func (l *log) add(s stream, at, from int64) {
	if n := len(l.runs); n == maxRuns {
		l.runs = append(l.runs[:0], l.runs[n/4:]...)
		l.dropped += int64(n / 4)
		l.mark(markDropped, l.dropped)
		_ = l.index.Erase(runsAt, l.dropped*runBytes) // in whole pages
	}
	l.runs = append(l.runs, run{s, at, from})
	l.markRun()
}

// forget frees the chunk of a stream before its rest. The caller holds l.mu.
func (l *log) forget(s stream) {
	o := &l.streams[s]
	l.mark(markRest+s, o.rest)
	_ = o.tape.Erase(o.rest-chunkSize, chunkSize)
}

// collect moves a stream to the log until EOF or a read error.
func (l *log) collect(s stream, r *os.File) {
	l.mu.Lock()
	to := l.streams[s].tape
	l.mu.Unlock()
	for {
		n, err := to.Record(r, chunkSize)
		l.grow(s, n)
		if err != nil {
			break
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	l.notify()
}

// grow counts n more bytes on the tape of a stream, at most a chunk.
func (l *log) grow(s stream, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.discarded || n == 0 {
		return
	}
	o := &l.streams[s]
	if runs := len(l.runs); runs == 0 || l.runs[runs-1].stream != s {
		l.add(s, l.size, o.size)
	}
	o.grow(n, func(int64) { l.forget(s) })
	l.size += int64(n)
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

// position returns where the next process_read of a stream starts.
func (l *log) position(s stream) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.read[s]
}

func (l *log) setPosition(s stream, off int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.discarded {
		l.read[s] = off
		l.mark(markRead+s, off)
	}
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
		if p == nil && len(more) == n {
			return more, at
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
		p, from := l.streams[r.stream].piece(r.from+off-r.at, int(min(int64(n), end-off)))
		if off = r.at + from - r.from; off < end && len(p) > 0 {
			return p[:min(int64(len(p)), end-off)], off
		}
		off = end
	}
	return nil, off
}

// discard frees the memory that nobody else has. Later output is dropped.
func (l *log) discard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.discarded {
		return
	}
	for _, t := range l.tapes() {
		t.Close()
	}
	l.discarded, l.runs, l.size = true, nil, 0
	for i := range l.streams {
		l.streams[i].discard()
	}
}
