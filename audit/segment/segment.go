// Package segment has the files of a log as both who writes the log and who proves it need them: their names, the segments
// in order, the lines of a segment, and where a segment begins in the hash tree. It writes nothing.
package segment

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/tree"
	"github.com/scopefs/scopefs/internal/interrupted"
)

// The files of a log beside its segments. Those of the tree: see package tree.
const (
	Mark      = "mark" // the high-water mark; each process that has the log open holds a shared flock(2) on it
	Tree      = "tree"
	PublicKey = "key.pub"
	Head      = "head"
)

// The ends of names.
const (
	PackedSuffix = ".zst"
	TreeSuffix   = ".tree"
)

// Name returns the name of segment n while it is not packed.
func Name(n int) string { return fmt.Sprintf("%08d.jsonl", n) }

// TreeFile returns the name of the tree's file for segment n.
func TreeFile(n int) string { return fmt.Sprintf("%08d%s", n, TreeSuffix) }

// A Segment is one file of a log.
type Segment struct {
	Number int
	Packed bool // compressed
}

// Name returns the name of the file.
func (s Segment) Name() string {
	if s.Packed {
		return Name(s.Number) + PackedSuffix
	}
	return Name(s.Number)
}

// List returns the segments in root, in order. If a segment exists both compressed and uncompressed, it returns the
// compressed one, which has its name only when it is complete. A segment that is compressed meanwhile is there: readdir(3) may show
// neither of its names, and then its number is missing among the others, before them or after.
func List(root *os.Root) ([]Segment, error) {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, err
	}
	var found []Segment
	for _, entry := range entries {
		plain, packed := strings.CutSuffix(entry.Name(), PackedSuffix)
		n, err := strconv.Atoi(strings.TrimSuffix(plain, ".jsonl"))
		if err == nil && n > 0 && plain == Name(n) {
			found = append(found, Segment{n, packed})
		}
	}
	slices.SortFunc(found, func(a, b Segment) int {
		if a.Number == b.Number && a.Packed {
			return -1
		}
		return a.Number - b.Number
	})
	found = slices.CompactFunc(found, func(a, b Segment) bool { return a.Number == b.Number })
	for more := len(found) > 0; more; {
		next, err := find(root, found[len(found)-1].Number+1)
		if more = err == nil; more {
			found = append(found, next)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	for i := len(found) - 1; i >= 0; i-- {
		for n := found[i].Number - 1; n > 0 && (i == 0 || n > found[i-1].Number); n-- {
			missed, err := find(root, n)
			if errors.Is(err, fs.ErrNotExist) {
				break
			}
			if err != nil {
				return nil, err
			}
			found = slices.Insert(found, i, missed)
		}
	}
	return found, nil
}

// find returns a segment by its number. The compressed file is there before the other one goes.
func find(root *os.Root, n int) (Segment, error) {
	for _, packed := range []bool{false, true} {
		seg := Segment{n, packed}
		if _, err := root.Lstat(seg.Name()); !errors.Is(err, fs.ErrNotExist) {
			return seg, err
		}
	}
	return Segment{}, fs.ErrNotExist
}

// Open opens a segment that another goroutine or process may pack meanwhile. It returns the segment opened.
func Open(root *os.Root, seg Segment) (*os.File, Segment, error) {
	f, err := OpenFile(root, seg.Name())
	if errors.Is(err, fs.ErrNotExist) && !seg.Packed {
		seg.Packed = true
		f, err = OpenFile(root, seg.Name())
	}
	return f, seg, err
}

// OpenFile opens a file of a log for reading.
func OpenFile(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// Lock is flock(2).
func Lock(f *os.File, how int) error {
	return os.NewSyscallError("flock", interrupted.Retry(func() error { return unix.Flock(int(f.Fd()), how) }))
}

// BlockSize is the approximate size in bytes of the lines that are read or compressed at once.
const BlockSize = 256 << 10

// Lines calls do with each line of a segment from an offset up to limit, or to the end if limit is negative. A line is valid
// during the call.
func Lines(root *os.Root, seg Segment, offset, limit int64, do func(line []byte) error) error {
	f, seg, err := Open(root, seg)
	if err != nil {
		return err
	}
	defer f.Close()
	if limit < 0 {
		limit = 1 << 62
	}
	var text io.Reader = io.NewSectionReader(f, offset, limit-offset)
	if seg.Packed {
		unpacker, err := zstd.NewReader(f)
		if err != nil {
			return err
		}
		defer unpacker.Close()
		if _, err := io.CopyN(io.Discard, unpacker, offset); err != nil {
			return err
		}
		text = io.LimitReader(unpacker, limit-offset)
	}
	var long []byte
	for lines := bufio.NewReaderSize(text, BlockSize); ; {
		line, err := lines.ReadSlice('\n')
		if err == bufio.ErrBufferFull {
			long = append(long, line...)
			continue
		}
		if err != nil && err != io.EOF {
			return err
		}
		if len(long) > 0 {
			line, long = append(long, line...), nil
		}
		if len(line) > 0 {
			if err := do(line); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
	}
}

// Positions returns where a segment begins in the tree, and how far it is hashed, from its file of the tree.
func Positions(f *os.File) (start, now tree.Position, err error) {
	b := make([]byte, 2*tree.PositionSize)
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return start, now, err
	}
	if start, err = tree.DecodePosition(b[:min(n, tree.PositionSize)]); err != nil {
		return start, now, err
	}
	if now, err = tree.DecodePosition(b[tree.PositionSize:max(n, tree.PositionSize)]); err != nil {
		now = start
	}
	return start, now, nil
}
