package scope

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// MaxGitIndex limits an index for CheckGitIndex, in bytes.
const MaxGitIndex = 64 << 20

// CheckGitIndex returns why a repository must not have an index: the first entry with a
// path that leads out of the work tree or into .git. git checks the paths of trees and of
// arguments, but not those of an index: git restore and git checkout write such a file,
// wherever it is.
//
// It reads the versions 2 to 4 of gitformat-index(5) with SHA-1, as git reads them, and
// refuses a split index, which has entries in another file. The untracked cache has names of
// directories that git status lists: each must be one name.
func CheckGitIndex(index io.ReaderAt, size int64) error {
	if size > MaxGitIndex {
		return fmt.Errorf("index is larger than %d bytes", MaxGitIndex)
	}
	err := checkGitIndex(index, size, func(*indexReader) {})
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errOddIndex
	}
	return err
}

// SumGitIndex returns a hash of what the entries of an index say: modes, objects, flags and paths. Two indexes with one hash differ in
// what git notes of files (git status writes that anew), in the version of the format, or in extensions. It reads what CheckGitIndex
// allows, and fails otherwise.
func SumGitIndex(index io.ReaderAt, size int64) ([]byte, error) {
	if size > MaxGitIndex {
		return nil, errOddIndex
	}
	sum := sha256.New()
	err := checkGitIndex(index, size, func(x *indexReader) {
		fmt.Fprintf(sum, "%o %x %x %d %s\n", x.mode, x.object, x.flags, len(x.path), x.path)
	})
	return sum.Sum(nil), err
}

var errOddIndex = errors.New("index is in no form that git writes")

// The sizes of parts of an index, in bytes.
const (
	gitHash     = 20
	entryFlags  = 40 + gitHash         // the offset of the flags in an entry
	extHead     = 8                    // the name of an extension, and its size
	endSize     = 4 + gitHash          // of the extension EOIE
	cacheHead   = 2*36 + 4 + 2*gitHash // of the untracked cache: two files' attributes, flags, two hashes
	maxPathName = 1 << 16
	longName    = 0xfff // the length of a path that does not fit into the flags
)

// checkGitIndex calls entry with the reader at each entry, before it checks the path.
func checkGitIndex(index io.ReaderAt, size int64, entry func(*indexReader)) error {
	end, blocks, err := indexBlocks(index, size)
	if err != nil {
		return err
	}
	x := indexReader{in: bufio.NewReaderSize(io.NewSectionReader(index, 0, max(size-gitHash, 0)), 64<<10)}
	head, err := x.take(12)
	if err != nil {
		return err
	}
	version, count := binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint32(head[8:])
	if string(head[:4]) != "DIRC" || version < 2 || version > 4 {
		return errOddIndex
	}
	for i := range count {
		starts := len(blocks) > 0 && blocks[0].first == i
		if starts {
			if blocks[0].at != x.at {
				return errOddIndex
			}
			blocks = blocks[1:]
		}
		if err := x.next(version == 4, starts); err != nil {
			return err
		}
		entry(&x)
		if !safeIndexPath(string(x.path), x.mode) {
			return fmt.Errorf("index has the path %.200q", x.path)
		}
	}
	if len(blocks) > 0 || end != 0 && end != x.at {
		return errOddIndex
	}
	for {
		head, err := x.take(extHead)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if string(head[:4]) == "link" {
			return errors.New("index is split: git update-index --no-split-index")
		}
		rest := x.at + int64(binary.BigEndian.Uint32(head[4:]))
		if string(head[:4]) == "UNTR" {
			if err := x.untracked(rest); err != nil {
				return err
			}
		}
		if err := x.skip(rest - x.at); err != nil {
			return err
		}
	}
}

// safeIndexPath is git's verify_path (read-cache.c).
func safeIndexPath(path string, mode uint32) bool {
	if mode == 0o040000 { // a directory of a sparse index
		path = strings.TrimSuffix(path, "/")
	}
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." || name == ".." || foldGit(name) == ".git" {
			return false
		}
	}
	return true
}

// indexReader reads the entries of an index.
type indexReader struct {
	in   *bufio.Reader
	at   int64  // the offset of in
	path []byte // of the last entry
	mode uint32

	object [gitHash]byte
	flags  uint32 // without the length of the path; the extended ones above
}

// take returns the next n bytes, which are valid until the next call.
func (x *indexReader) take(n int) ([]byte, error) {
	text, err := x.in.Peek(n)
	if err != nil && len(text) > 0 {
		return nil, io.ErrUnexpectedEOF
	}
	if err == nil {
		_, err = x.in.Discard(n)
		x.at += int64(n)
	}
	return text, err
}

func (x *indexReader) skip(n int64) error {
	for n > 0 {
		part, err := x.in.Discard(int(min(n, 1<<20)))
		x.at += int64(part)
		if n -= int64(part); err != nil {
			return err
		}
	}
	return nil
}

// next reads an entry. In version 4 a path continues the one before, but not where a block
// starts: git may read each block by itself.
func (x *indexReader) next(compressed, starts bool) error {
	begin := x.at
	head, err := x.take(entryFlags + 2)
	if err != nil {
		return err
	}
	x.mode, x.object = binary.BigEndian.Uint32(head[24:]), [gitHash]byte(head[40:])
	flags := binary.BigEndian.Uint16(head[entryFlags:])
	x.flags = uint32(flags &^ longName)
	if flags&0x4000 != 0 { // more flags
		more, err := x.take(2)
		if err != nil {
			return err
		}
		x.flags |= uint32(binary.BigEndian.Uint16(more)) << 16
	}
	kept := 0
	if compressed {
		cut, err := x.varint()
		if err != nil {
			return err
		}
		if kept = len(x.path) - cut; cut > len(x.path) || starts && kept != 0 {
			return errOddIndex
		}
	}
	if err := x.text(kept); err != nil {
		return err
	}
	if said := int(flags & longName); said != min(len(x.path), longName) {
		return errOddIndex
	}
	if compressed {
		return nil
	}
	// One to eight NULs end the entry at a multiple of eight bytes. The first was read.
	pad, err := x.take(int((8 - (x.at-begin)%8) % 8))
	if err == nil && len(bytes.Trim(pad, "\x00")) > 0 {
		return errOddIndex
	}
	return err
}

// text reads up to a NUL. The text replaces what x.path has after kept bytes.
func (x *indexReader) text(kept int) error {
	x.path = x.path[:kept]
	for {
		part, err := x.in.ReadSlice(0)
		x.at += int64(len(part))
		x.path = append(x.path, part...)
		if len(x.path) > maxPathName {
			return errOddIndex
		}
		if err == nil {
			x.path = x.path[:len(x.path)-1]
			return nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// untracked reads the names of the untracked cache, an extension that ends at rest. A cache
// without directories may end before its count (read_untracked_extension in dir.c of git).
func (x *indexReader) untracked(rest int64) error {
	hosts, err := x.varint()
	if err != nil {
		return err
	}
	if err := x.skip(int64(hosts) + cacheHead); err != nil {
		return err
	}
	if err := x.text(0); err != nil { // the name of the files like .gitignore
		return err
	}
	if x.at >= rest {
		return nil
	}
	dirs, err := x.varint()
	for i := 0; i < dirs && err == nil; i++ {
		err = x.untrackedDir(i == 0)
	}
	if err == nil && x.at > rest {
		return errOddIndex
	}
	return err
}

// untrackedDir reads the name of a directory, and those of untracked files in it. The
// directories in it follow.
func (x *indexReader) untrackedDir(top bool) error {
	files, err := x.varint()
	if err == nil {
		_, err = x.varint() // the number of directories
	}
	for i := 0; i <= files && err == nil; i++ {
		if err = x.text(0); err != nil {
			return err
		}
		name := string(x.path)
		if i > 0 {
			name = strings.TrimSuffix(name, "/")
		} else if top && name == "" {
			continue
		}
		if strings.Contains(name, "/") || !safeIndexPath(name, 0) {
			return fmt.Errorf("index has the untracked file %.200q", name)
		}
	}
	return err
}

// varint is decode_varint (varint.c in git).
func (x *indexReader) varint() (n int, err error) {
	for first := true; ; first = false {
		b, err := x.take(1)
		if err != nil {
			return 0, err
		}
		if !first {
			n++
		}
		n = n<<7 + int(b[0]&0x7f)
		if n > MaxGitIndex {
			return 0, errOddIndex
		}
		if b[0]&0x80 == 0 {
			return n, nil
		}
	}
}

// indexBlock is a part of the entries that git may read in a thread of its own.
type indexBlock struct {
	first uint32 // the number of its first entry
	at    int64  // the offset of that
}

// indexBlocks reads the extensions from which git takes the offsets of entries before it
// reads them: EOIE, the last one, has the end of the entries, and IEOT has blocks. end is
// zero without them.
func indexBlocks(index io.ReaderAt, size int64) (end int64, blocks []indexBlock, err error) {
	last := size - gitHash - extHead - endSize
	if last < 0 {
		return 0, nil, nil
	}
	number := func(at int64) uint32 {
		var b [4]byte
		if _, failed := index.ReadAt(b[:], at); failed != nil && err == nil {
			err = failed
		}
		return binary.BigEndian.Uint32(b[:])
	}
	name := func(text string) uint32 { return binary.BigEndian.Uint32([]byte(text)) }
	if number(last) != name("EOIE") || err != nil {
		return 0, nil, err
	}
	end = int64(number(last + extHead))
	for at := end; at < last && err == nil; {
		length := int64(number(at + 4))
		if number(at) == name("IEOT") {
			first := uint32(0)
			for entry := at + extHead + 4; entry+8 <= at+extHead+length && entry < last && err == nil; entry += 8 {
				blocks = append(blocks, indexBlock{first, int64(number(entry))})
				first += number(entry + 4)
			}
			return end, blocks, err
		}
		at += extHead + length
	}
	return end, nil, err
}
