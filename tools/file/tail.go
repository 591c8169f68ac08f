package file

import (
	"bytes"
	"io"
	"os"
)

// readTail answers with the last lines of a large file, read from its end. Their
// numbers are not known: they count from 1.
func readTail(r readResult, f *os.File, lines int) (readResult, error) {
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
	r.take(&text, 1)
	r.Truncated = r.Truncated || cut && text.lines < lines
	r.Lines = nil
	return r, nil
}

// lastLines is the end of b with at most n lines, the last of which may have no end.
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
