package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// sealed is the mode of a segment that is full: it is never written again, and an fstat(2) tells every process so.
const sealed = 0o400

func segmentName(n int) string { return fmt.Sprintf("%08d.jsonl", n) }

// segments returns the numbers of the segments in root, in order.
func segments(root *os.Root) ([]int, error) {
	dir, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var found []int
	for _, name := range names {
		n, err := strconv.Atoi(strings.TrimSuffix(name, ".jsonl"))
		if err == nil && n > 0 && name == segmentName(n) {
			found = append(found, n)
		}
	}
	slices.Sort(found)
	return found, nil
}

// maxDamaged bounds how many broken lines at the end of a segment are taken for the remains of a power loss.
const maxDamaged = 16

// tail finds where the last whole line of a segment ends, and its sequence number: 0 when there is no line. What follows
// is half a line, or lines in which a power loss left holes.
func tail(f io.ReaderAt, size int64) (end int64, seq uint64, err error) {
	end = size
	for range maxDamaged {
		if end == 0 {
			return 0, 0, nil
		}
		start, err := lineStart(f, end)
		if err != nil {
			return 0, 0, err
		}
		line := make([]byte, end-start)
		if _, err := f.ReadAt(line, start); err != nil {
			return 0, 0, err
		}
		if seq := seqOf(line); seq > 0 {
			return end, seq, nil
		}
		end = start
	}
	return 0, 0, errors.New("the end of the log is damaged beyond what a power loss explains")
}

// lineStart returns where the line begins whose last byte stands before end.
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

// seqOf returns the sequence number of a whole line, and 0 when it is none.
func seqOf(line []byte) uint64 {
	var e struct{ Seq uint64 }
	if !bytes.HasSuffix(line, []byte("\n")) || json.Unmarshal(line, &e) != nil {
		return 0
	}
	return e.Seq
}

// syncDir makes the names in root last.
func syncDir(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
