package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/audit/segment"
)

// A piece is a part of a segment: whole lines that any goroutine can read and filter.
type piece struct {
	file *os.File
	name string // the name of the segment
	from int64  // offset of the lines in the uncompressed segment
	pack *block // nil: the lines are in text
	text []byte
	free chan<- []byte // takes text back; nil for a pack
}

// A hit is an event that matches a filter, or a line that is not an event.
type hit struct {
	event Event
	err   error
}

// A scanner holds buffers that are reused from piece to piece.
type scanner struct {
	unpacker    *zstd.Decoder
	frame, text []byte
}

func (s *scanner) close() {
	if s.unpacker != nil {
		s.unpacker.Close()
	}
}

// load returns the lines of a piece. They are valid until the next call.
func (s *scanner) load(p *piece) (text []byte, err error) {
	if p.pack == nil {
		return p.text, nil
	}
	if s.unpacker == nil {
		if s.unpacker, err = newUnpacker(); err != nil {
			return nil, err
		}
	}
	s.frame = slices.Grow(s.frame[:0], int(p.pack.Size))[:p.pack.Size]
	if _, err := p.file.ReadAt(s.frame, p.pack.At); err != nil {
		return nil, err
	}
	s.text, err = s.unpacker.DecodeAll(s.frame, s.text[:0])
	return s.text, err
}

// scan returns the hits in a piece. For a piece that cannot be read it returns one hit, with an error.
func (s *scanner) scan(p *piece, f *matcher) []hit {
	text, err := s.load(p)
	if err != nil {
		return []hit{{Event{Raw: []byte{}}, fmt.Errorf("read %s at byte %d: %w", p.name, p.from, err)}}
	}
	if p.free != nil {
		defer func() { p.free <- text[:0] }() // has room for every buffer
	}
	var hits []hit
	at := p.from
	for line := range bytes.Lines(text) {
		at += int64(len(line))
		if !f.mayMatch(line) {
			continue
		}
		raw := bytes.Clone(bytes.TrimSuffix(line, []byte("\n")))
		e := Event{Raw: raw}
		if err := json.Unmarshal(raw, &e); err != nil {
			hits = append(hits, hit{Event{Raw: raw}, fmt.Errorf("read %s before byte %d: %w", p.name, at, err)})
		} else if f.match(e) {
			hits = append(hits, hit{event: e})
		}
	}
	return hits
}

// A matcher is a filter that can also test lines before they are parsed.
type matcher struct {
	Filter
	parts [][]byte // of lines that match
	all   bool     // every line matches
}

func newMatcher(f Filter) *matcher {
	m := &matcher{Filter: f, all: f == Filter{}}
	for key, want := range f.exact() {
		if want != "" {
			m.parts = append(m.parts, event.AppendString([]byte(`"`+key+`":`), Escape(want)))
		}
	}
	return m
}

// mayMatch reports whether a line may match the filter or may not be an event.
func (m *matcher) mayMatch(line []byte) bool {
	if m.all {
		return true
	}
	if !bytes.HasPrefix(line, []byte(`{"seq":`)) || !bytes.HasSuffix(line, []byte("}\n")) {
		return true
	}
	if m.Denied && !segment.Denied(line) {
		return false
	}
	for _, part := range m.parts {
		if !bytes.Contains(line, part) {
			return false
		}
	}
	if m.Since.IsZero() && m.Seq == 0 && m.After == 0 {
		return true
	}
	seq, at, ok := segment.ParseHead(line)
	return !ok || !at.Before(m.Since) && (m.Seq == 0 || m.Seq == seq) && seq > m.After
}

// mayHold reports whether a block may contain matching events, or lines that are not events.
func (m *matcher) mayHold(b *block) bool {
	return b.Odd || (!m.Denied || b.Denied) && !b.Newest.Before(m.Since) &&
		(m.Seq == 0 || b.First <= m.Seq && m.Seq <= b.Last) && b.Last > m.After
}

// scanAll scans pieces in parallel and yields the hits in order. It returns errStop if yield returns false.
func scanAll(ctx context.Context, m *matcher, pieces func(yield func(*piece) bool), yield func(Event, error) bool) error {
	workers := runtime.GOMAXPROCS(0)
	type job struct {
		*piece
		hits chan []hit
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	jobs, order := make(chan job), make(chan job, 2*workers)
	running.Go(func() {
		defer close(order)
		defer close(jobs)
		for p := range pieces {
			j := job{p, make(chan []hit, 1)}
			for _, to := range []chan job{order, jobs} {
				select {
				case to <- j:
				case <-ctx.Done():
					return
				}
			}
		}
	})
	for range workers {
		running.Go(func() {
			var s scanner
			defer s.close()
			for j := range jobs {
				j.hits <- s.scan(j.piece, m)
			}
		})
	}
	for j := range order {
		select {
		case hits := <-j.hits:
			for _, h := range hits {
				if err := ctx.Err(); err != nil {
					return err
				}
				if !yield(h.event, h.err) {
					return errStop
				}
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// chunkSize is the size of a piece of an uncompressed segment, in bytes: a worker finds it in the cache of its processor.
const chunkSize = 256 << 10

// packedPieces returns the blocks of a packed segment that may contain hits.
func packedPieces(f *os.File, name string, m *matcher) (func(yield func(*piece) bool), error) {
	blocks, err := readIndex(f)
	if err != nil {
		return nil, err
	}
	return func(yield func(*piece) bool) {
		from := int64(0)
		for i := range blocks {
			b := &blocks[i]
			if m.mayHold(b) && !yield(&piece{file: f, name: name, from: from, pack: b}) {
				return
			}
			from += b.Text
		}
	}, nil
}

// plainPieces returns the lines of a segment from *offset to size, and advances *offset. It leaves a partial last
// line unless the segment is complete.
func plainPieces(f *os.File, name string, offset *int64, size int64, complete bool, failed *error) func(yield func(*piece) bool) {
	return func(yield func(*piece) bool) {
		free := make(chan []byte, runtime.GOMAXPROCS(0)+2) // one for each worker, one to fill, one that waits
		for range cap(free) {
			free <- nil
		}
		for want := int64(chunkSize); *offset < size; {
			n := int(min(want, size-*offset))
			text := slices.Grow((<-free)[:0], n)[:n]
			if _, err := f.ReadAt(text, *offset); err != nil && err != io.EOF {
				*failed = err
				return
			}
			end := bytes.LastIndexByte(text, '\n') + 1
			switch last := *offset+int64(len(text)) == size; {
			case last && complete:
				end = len(text)
			case end == 0 && last:
				return
			case end == 0: // the line is longer than the chunk
				want *= 2
				free <- text
				continue
			}
			p := &piece{name: name, from: *offset, text: text[:end], free: free}
			*offset += int64(end)
			want = chunkSize
			if !yield(p) {
				return
			}
		}
	}
}
