package audit

import (
	"bytes"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"github.com/scopefs/scopefs/audit/segment"
)

// sealed is the mode of a complete segment. No process writes to it again, and fstat(2) shows the mode to every
// process.
const sealed = 0o400

// last returns the number of the last segment, or 0 if there is none.
func last(all []segment.Segment) int {
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].Number
}

// Last returns the number of the newest event of the log in dir, or 0 if it has none.
func Last(dir string) (uint64, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	return seqBefore(root, math.MaxInt)
}

// seqBefore returns the sequence number of the last readable event before segment n, or 0 if there is none.
func seqBefore(root *os.Root, n int) (uint64, error) {
	all, err := segment.List(root)
	for _, seg := range slices.Backward(all) {
		if seg.Number >= n {
			continue
		}
		if seq, err := lastSeq(root, seg); err == nil && seq > 0 {
			return seq, nil
		}
	}
	return 0, err
}

func lastSeq(root *os.Root, seg segment.Segment) (uint64, error) {
	f, seg, err := segment.Open(root, seg)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if seg.Packed {
		blocks, err := readIndex(f)
		if err != nil || len(blocks) == 0 {
			return 0, err
		}
		return blocks[len(blocks)-1].Last, nil
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	_, seq, err := tail(f, info.Size())
	return seq, err
}

// maxLine is an upper limit of the length of a line, in bytes: the limits of its strings, which JSON may double.
const maxLine = 64 << 10

// tail returns the end of the last whole line of a segment and its sequence number, or 0 if there is none. The bytes
// after it are a partial line, lines with holes from a power loss, or text from another program.
func tail(f io.ReaderAt, size int64) (end int64, seq uint64, err error) {
	for end = size; end > 0; {
		start, err := lineStart(f, end)
		if err != nil {
			return 0, 0, err
		}
		if end-start <= maxLine {
			line := make([]byte, end-start)
			if _, err := f.ReadAt(line, start); err != nil {
				return 0, 0, err
			}
			if seq := segment.ParseEvent(line); seq > 0 {
				return end, seq, nil
			}
		}
		end = start
	}
	return 0, 0, nil
}

// skip returns an offset in a segment before which all lines are older than a time, if times do not decrease.
func skip(f io.ReaderAt, size int64, since time.Time) (from int64) {
	text := make([]byte, maxLine)
	for to := size; to-from > chunkSize; {
		mid := from + (to-from)/2
		n, _ := f.ReadAt(text, mid) // what cannot be read is not skipped
		_, line, _ := bytes.Cut(text[:n], []byte("\n"))
		_, at, ok := segment.ParseHead(line)
		switch {
		case !ok:
			return from
		case at.Before(since):
			from = mid + int64(n-len(line))
		default:
			to = mid
		}
	}
	return from
}

// lineStart returns the start of the line that ends at end.
func lineStart(f io.ReaderAt, end int64) (int64, error) {
	var chunk [16 << 10]byte
	for to := end - 1; to > 0; {
		from := max(0, to-int64(len(chunk)))
		b := chunk[:to-from]
		if _, err := f.ReadAt(b, from); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
			return from + int64(i) + 1, nil
		}
		to = from
	}
	return 0, nil
}
