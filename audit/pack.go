package audit

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/segment"
	"github.com/scopefs/scopefs/internal/durable"
)

// A packed segment is a sequence of zstd frames (RFC 8878), each of whole lines, followed by a skippable frame with
// an index. `zstd -d` restores the original bytes.

// A block describes a frame in the index.
type block struct {
	At     int64     `json:"at"`   // offset of the frame in the file
	Size   int64     `json:"size"` // size of the frame
	Text   int64     `json:"text"` // size of the lines in it
	First  uint64    `json:"first"`
	Last   uint64    `json:"last"`
	Newest time.Time `json:"newest"`        // the latest time of its events; the clock may have been set back
	Denied bool      `json:"denied"`        // contains denials or violations
	Odd    bool      `json:"odd,omitempty"` // contains lines that are not events
}

// blockOf returns the description of lines.
func blockOf(text []byte) block {
	b := block{Text: int64(len(text))}
	for line := range bytes.Lines(text) {
		seq, at, ok := segment.ParseHead(line)
		if !ok || !bytes.HasSuffix(line, []byte("}\n")) {
			b.Odd = true
			continue
		}
		if b.First == 0 {
			b.First = seq
		}
		b.Last = max(b.Last, seq)
		if at.After(b.Newest) {
			b.Newest = at
		}
		b.Denied = b.Denied || segment.Denied(line)
	}
	return b
}

// The index is a skippable frame: RFC 8878, 3.1.2. Its content ends with its own length and indexMagic.
const (
	skippableMagic = 0x184D2A50
	indexMagic     = "scopefs1"
	indexTail      = 4 + len(indexMagic)
)

func appendIndex(b []byte, blocks []block) ([]byte, error) {
	text, err := json.Marshal(blocks)
	if err != nil {
		return nil, err
	}
	b = binary.LittleEndian.AppendUint32(b, skippableMagic)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(text)+indexTail))
	b = append(b, text...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
	return append(b, indexMagic...), nil
}

func readIndex(f *os.File) ([]block, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	end := make([]byte, indexTail)
	if _, err := f.ReadAt(end, max(0, info.Size()-int64(indexTail))); err != nil || string(end[4:]) != indexMagic {
		return nil, fmt.Errorf("%s has no index", f.Name())
	}
	size := int64(binary.LittleEndian.Uint32(end))
	if size > info.Size() {
		return nil, fmt.Errorf("%s has no index", f.Name())
	}
	text := make([]byte, size)
	if _, err := f.ReadAt(text, info.Size()-int64(indexTail)-size); err != nil {
		return nil, err
	}
	var blocks []block
	if err := json.Unmarshal(text, &blocks); err != nil {
		return nil, fmt.Errorf("index of %s: %w", f.Name(), err)
	}
	return blocks, nil
}

// maxBlock limits the uncompressed size of a frame, in bytes: a block and the rest of its last line. A damaged line
// can be as long as its segment.
const maxBlock = 1 << 30

func newUnpacker() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxBlock))
}

// pack compresses a complete segment and removes the original. It does nothing if another process is packing the
// segment. It renames the packed file only after it is on disk and compared with the original.
func pack(root *os.Root, seg segment.Segment, stop <-chan struct{}) error {
	from, err := segment.OpenFile(root, seg.Name())
	if err != nil {
		return err
	}
	defer from.Close()
	if segment.Lock(from, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil
	}
	info, err := from.Stat()
	if err != nil {
		return err
	}
	packed := segment.Segment{Number: seg.Number, Packed: true}
	to, err := durable.Begin(root, packed.Name(), durable.Options{Mode: sealed})
	if err != nil {
		return err
	}
	defer to.Close()
	err = packTo(to.File, from, stop)
	if err == nil { // expire uses the modification time
		err = root.Chtimes(to.Temp(), info.ModTime(), info.ModTime())
	}
	if err == nil {
		err = to.Place()
	}
	if err != nil {
		return err
	}
	return root.Remove(seg.Name())
}

var errStopped = errors.New("the log is closed")

// packTo compresses the lines of a segment.
func packTo(to io.Writer, from io.Reader, stop <-chan struct{}) error {
	packer, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	unpacker, err := newUnpacker()
	if err != nil {
		return err
	}
	defer unpacker.Close()
	out, lines := bufio.NewWriterSize(to, 1<<20), bufio.NewReaderSize(from, segment.BlockSize)
	var blocks []block
	var text, frame, check []byte
	at := int64(0)
	for last := false; !last; {
		select {
		case <-stop:
			return errStopped
		default:
		}
		if text, err = readBlock(lines, text[:0]); err != nil && err != io.EOF {
			return err
		}
		if last = err == io.EOF; len(text) == 0 {
			break
		}
		frame = packer.EncodeAll(text, frame[:0])
		if check, err = unpacker.DecodeAll(frame, check[:0]); err != nil || !bytes.Equal(check, text) {
			return errors.Join(errors.New("the compressed segment is another"), err)
		}
		b := blockOf(text)
		b.At, b.Size = at, int64(len(frame))
		blocks = append(blocks, b)
		if _, err := out.Write(frame); err != nil {
			return err
		}
		at += b.Size
	}
	index, err := appendIndex(nil, blocks)
	if err != nil {
		return err
	}
	if _, err := out.Write(index); err != nil {
		return err
	}
	return out.Flush()
}

// readBlock appends whole lines of about segment.BlockSize bytes to text.
func readBlock(lines *bufio.Reader, text []byte) ([]byte, error) {
	for len(text) < segment.BlockSize {
		line, err := lines.ReadSlice('\n')
		for err == bufio.ErrBufferFull {
			text = append(text, line...)
			line, err = lines.ReadSlice('\n')
		}
		text = append(text, line...)
		if err != nil {
			return text, err
		}
	}
	return text, nil
}
