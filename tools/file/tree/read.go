package tree

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/tools/file/message"
)

const (
	maxLines = 2000      // of one answer, unless the call gives a limit
	maxText  = 256 << 10 // bytes of one answer
	maxLine  = 16 << 10  // bytes of one line
	maxImage = 5 << 20   // bytes
)

func (t *tree) read(ctx context.Context, in message.ReadArgs) (message.ReadResult, error) {
	p, err := t.at(in.Path, message.Reading)
	if err != nil {
		return message.ReadResult{}, err
	}
	if in.Tail > 0 && (in.Offset > 0 || in.Limit > 0) {
		return message.ReadResult{}, message.Problem(message.Invalid, p.rel, "tail excludes offset and limit", "")
	}
	f, st, err := t.open(p, os.O_RDONLY, message.Reading)
	if errors.Is(err, unix.EISDIR) && in.List {
		l, err := t.list(ctx, message.ListArgs{Path: in.Path, Depth: 2})
		return message.ReadResult{Path: p.rel, Text: l.Text(), Truncated: l.NextCursor != ""}, err
	}
	if err != nil {
		return message.ReadResult{}, err
	}
	defer f.Close()
	b, ok, err := slurp(f, st.Size)
	switch {
	case err != nil:
		return message.ReadResult{}, t.fail(p, err, message.Reading)
	case ok:
		return readWhole(p, b, in)
	}
	r, err := readPart(ctx, p, f, in)
	if err != nil {
		return message.ReadResult{}, t.fail(p, err, message.Reading)
	}
	r.Size = st.Size
	return r, nil
}

// readWhole returns the result from the whole content.
func readWhole(p place, b []byte, in message.ReadArgs) (message.ReadResult, error) {
	r := message.ReadResult{Path: p.rel, Size: int64(len(b)), Hash: hashOf(b)}
	if !isText(b) {
		if r.MIME = imageType(b); in.Media {
			r.MIME = mediaType(b)
		}
		if r.MIME == "" {
			return message.ReadResult{}, notText(p, r.Size, b[:min(len(b), 512)])
		}
		if len(b) > maxImage {
			e := message.Errorf(message.TooLarge, "larger than %d bytes, which is the most for images and media", maxImage)
			e.Path = p.rel
			return message.ReadResult{}, e
		}
		r.Data = b
		return r, nil
	}
	b = bytes.TrimPrefix(b, []byte(bom))
	total := bytes.Count(b, []byte("\n"))
	if len(b) > 0 && b[len(b)-1] != '\n' {
		total++
	}
	first, most := window(&in, total)
	rest := b
	for range first - 1 {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			rest = nil
			break
		}
		rest = rest[i+1:]
	}
	var text page
	for len(rest) > 0 && text.lines < most {
		end := bytes.IndexByte(rest, '\n') + 1
		if end == 0 {
			end = len(rest)
		}
		if !text.add(rest[:end], 0) {
			break
		}
		rest = rest[end:]
	}
	take(&r, &text, first)
	r.Lines.Total = &total
	if r.Lines.End < total && len(rest) > 0 {
		r.Truncated, r.NextOffset = true, r.Lines.End+1
	}
	return r, nil
}

// window returns the first line that the call wants, and the number of lines.
func window(a *message.ReadArgs, total int) (first, most int) {
	if a.Tail > 0 {
		return max(1, total-a.Tail+1), a.Tail
	}
	most = maxLines
	if a.Limit > 0 {
		most = a.Limit
	}
	return max(1, a.Offset), most
}

func take(r *message.ReadResult, text *page, first int) {
	r.Text, r.Replaced = printable.OfBytes(text.b)
	r.Truncated = text.cut
	r.Lines = &message.LineRange{Start: first, End: first + text.lines - 1}
}

// page collects lines up to the bounds of an answer.
type page struct {
	b     []byte
	lines int
	cut   bool
}

// add adds a line with its end; more is the number of bytes already omitted from it. It
// returns false if there is no room.
func (t *page) add(line []byte, more int) bool {
	if len(line) > maxLine || more > 0 {
		t.cut = true
		kept := begin(line, maxLine)
		line = fmt.Appendf(nil, "%s… [%d bytes cut]\n", kept, len(line)-len(kept)+more)
	}
	if t.lines > 0 && len(t.b)+len(line) > maxText {
		return false
	}
	t.b = append(t.b, line...)
	t.lines++
	return true
}

// begin returns a line, or at most so many bytes of it that no character is cut.
func begin(line []byte, most int) []byte {
	if len(line) <= most {
		return line
	}
	line = line[:most]
	for range utf8.UTFMax - 1 {
		if r, n := utf8.DecodeLastRune(line); r != utf8.RuneError || n != 1 {
			break
		}
		line = line[:len(line)-1]
	}
	return line
}

// readPart returns the result from a file that is too large for readWhole.
func readPart(ctx context.Context, p place, f *os.File, in message.ReadArgs) (message.ReadResult, error) {
	r := message.ReadResult{Path: p.rel}
	head := make([]byte, sniffed)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return r, err
	}
	if head = head[:n]; !isText(head) {
		info, err := f.Stat()
		if err != nil {
			return r, err
		}
		return r, notText(p, info.Size(), head[:min(n, 512)])
	}
	if in.Tail > 0 {
		return readTail(r, f, in.Tail)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return r, err
	}
	first, most := window(&in, 0)
	var text page
	lines := bufio.NewReaderSize(until(ctx, f), 256<<10)
	for n := 1; text.lines < most; n++ {
		line, more, err := nextLine(lines)
		if err != nil && err != io.EOF {
			return r, err
		}
		if n >= first && len(line) > 0 && !text.add(line, more) {
			break
		}
		if err == io.EOF {
			take(&r, &text, first)
			total := n
			if len(line) == 0 {
				total--
			}
			r.Lines.Total = &total
			return r, nil
		}
	}
	take(&r, &text, first)
	r.Truncated, r.NextOffset = true, r.Lines.End+1
	return r, nil
}

// nextLine reads a line. It keeps the part that fits into the buffer; more is the number
// of bytes that it skipped.
func nextLine(r *bufio.Reader) (line []byte, more int, err error) {
	line, err = r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, 0, err
	}
	line = bytes.Clone(line[:maxLine])
	more = r.Size() - maxLine
	for errors.Is(err, bufio.ErrBufferFull) {
		var rest []byte
		rest, err = r.ReadSlice('\n')
		more += len(rest)
	}
	return line, more, err
}

// readTail returns the last lines of a large file, read from its end. Their numbers are
// unknown: they count from 1.
func readTail(r message.ReadResult, f *os.File, lines int) (message.ReadResult, error) {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return r, err
	}
	var b []byte
	for start := end; start > 0 && len(b) <= maxText; {
		n := min(start, 64<<10)
		start -= n
		block := make([]byte, n, int(n)+len(b))
		if _, err := f.ReadAt(block, start); err != nil && err != io.EOF {
			return r, err
		}
		b = append(block, b...)
		if bytes.Count(b, []byte("\n")) > lines {
			break
		}
	}
	cut := len(b) > maxText
	b = lastLines(b[max(0, len(b)-maxText):], lines)
	var text page
	for line := range bytes.Lines(b) {
		text.add(line, 0)
	}
	take(&r, &text, 1)
	r.Truncated = r.Truncated || cut && text.lines < lines
	r.Lines = nil
	return r, nil
}

// lastLines returns the last lines of b, at most n. The final line may lack a newline.
func lastLines(b []byte, n int) []byte {
	at := len(b)
	if at > 0 && b[at-1] == '\n' {
		at--
	}
	for range n {
		at = bytes.LastIndexByte(b[:at], '\n')
		if at < 0 {
			return b
		}
	}
	return b[at+1:]
}
