package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sealed is the mode of a complete segment. No process writes to it again, and fstat(2) shows the mode to every
// process.
const sealed = 0o400

// A segment is one file of a log.
type segment struct {
	number int
	packed bool // compressed
}

const (
	packedSuffix  = ".zst"
	damagedSuffix = ".damaged"
)

func segmentName(n int) string { return fmt.Sprintf("%08d.jsonl", n) }

func (s segment) name() string {
	if s.packed {
		return segmentName(s.number) + packedSuffix
	}
	return segmentName(s.number)
}

// segments returns the segments in root, in order. If a segment exists both compressed and uncompressed, it returns
// the compressed one, which has its name only when it is complete.
func segments(root *os.Root) ([]segment, error) {
	dir, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var found []segment
	for _, name := range names {
		plain, packed := strings.CutSuffix(name, packedSuffix)
		n, err := strconv.Atoi(strings.TrimSuffix(plain, ".jsonl"))
		if err == nil && n > 0 && plain == segmentName(n) {
			found = append(found, segment{n, packed})
		}
	}
	slices.SortFunc(found, func(a, b segment) int {
		if a.number == b.number && a.packed {
			return -1
		}
		return a.number - b.number
	})
	return slices.CompactFunc(found, func(a, b segment) bool { return a.number == b.number }), nil
}

// last returns the number of the last segment, or 0 if there is none.
func last(all []segment) int {
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].number
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
	all, err := segments(root)
	for _, seg := range slices.Backward(all) {
		if seg.number >= n {
			continue
		}
		if seq, err := lastSeq(root, seg); err == nil && seq > 0 {
			return seq, nil
		}
	}
	return 0, err
}

func lastSeq(root *os.Root, seg segment) (uint64, error) {
	f, seg, err := openEither(root, seg)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if seg.packed {
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

func openSegment(root *os.Root, seg segment) (*os.File, error) {
	return root.OpenFile(seg.name(), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// openEither opens a segment that another goroutine or process may pack meanwhile. It returns the segment opened.
func openEither(root *os.Root, seg segment) (*os.File, segment, error) {
	f, err := openSegment(root, seg)
	if errors.Is(err, fs.ErrNotExist) && !seg.packed {
		seg.packed = true
		f, err = openSegment(root, seg)
	}
	if err != nil {
		return nil, seg, err
	}
	return f, seg, nil
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
			if seq := seqOf(line); seq > 0 {
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
		_, at, ok := parseHead(line)
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

// seqOf returns the sequence number of a whole line, or 0 if the line is not a valid event.
func seqOf(line []byte) uint64 {
	var e struct{ Seq uint64 }
	if !bytes.HasSuffix(line, []byte("\n")) || json.Unmarshal(line, &e) != nil {
		return 0
	}
	return e.Seq
}

// parseHead parses what appendHead writes.
func parseHead(line []byte) (seq uint64, at time.Time, ok bool) {
	seq, rest, ok := parseSeq(line)
	if !ok {
		return 0, at, false
	}
	rest, ok = bytes.CutPrefix(rest, []byte(`,"time":"`))
	i := bytes.IndexByte(rest, '"')
	if !ok || i < 0 {
		return 0, at, false
	}
	at, err := time.Parse(time.RFC3339Nano, string(rest[:i]))
	return seq, at, err == nil
}

// parseSeq parses the beginning of what appendHead writes, and returns what follows.
func parseSeq(line []byte) (seq uint64, rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(line, []byte(`{"seq":`))
	i := bytes.IndexByte(rest, ',')
	if !ok || i < 0 {
		return 0, nil, false
	}
	seq, err := strconv.ParseUint(string(rest[:i]), 10, 64)
	return seq, rest[i:], err == nil
}

// value returns the raw string of a key in a line of appendBody. The key cannot occur inside a string, because quotes
// in strings are escaped.
func value(line []byte, key string) string {
	_, rest, found := bytes.Cut(line, []byte(`"`+key+`":"`))
	i := bytes.IndexByte(rest, '"')
	if !found || i < 0 {
		return ""
	}
	return string(rest[:i])
}
