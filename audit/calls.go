package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// openCalls maps the id of each call that has begun and not ended to the segment of its first event.
type openCalls map[string]int

// follow updates c from the events in lines of segment n.
func (c openCalls) follow(lines []byte, n int) {
	for line := range bytes.Lines(lines) {
		if !isCall(line) {
			continue
		}
		switch id := value(line, "call"); {
		case id == "":
		case value(line, "outcome") == OutcomeBegin:
			c[id] = n
		default:
			delete(c, id)
		}
	}
}

// oldestCall returns the segment in which the oldest open call of any process began. It returns 0 if no call is open.
func (s *store) oldestCall() uint64 {
	oldest := uint64(0)
	if len(s.calls) > 0 {
		oldest = uint64(slices.Min(slices.Collect(maps.Values(s.calls))))
	}
	if !s.finished && s.mark.calls > 0 && (oldest == 0 || s.mark.calls < oldest) {
		return s.mark.calls
	}
	return oldest
}

// finishCalls records OutcomeUnknown for calls that earlier processes began and did not end. It waits until no other
// process has the log open.
func (s *store) finishCalls() {
	if s.finished || !s.marks.alone() {
		return
	}
	for _, e := range s.unfinished() {
		if slices.Contains(s.opts.Continued, e.Call) {
			continue
		}
		e.Outcome, e.Detail = OutcomeUnknown, "the daemon ended before the call did"
		s.remarks = append(s.remarks, e)
	}
	s.finished = true
}

// unfinished returns the first event of each open call of earlier processes. It skips segments that cannot be read.
func (s *store) unfinished() []Event {
	from := int(s.found.calls)
	if from == 0 && !s.found.closed() { // the mark may be as old as the last sync
		from = max(s.number-1, 1)
	}
	if from == 0 {
		return nil
	}
	all, _ := segments(s.root)
	begun := map[string][]byte{}
	for _, seg := range all {
		if seg.number < from {
			continue
		}
		_ = eachLine(s.root, seg, func(line []byte) {
			if !isCall(line) {
				return
			}
			switch id := value(line, "call"); {
			case id == "":
			case value(line, "outcome") == OutcomeBegin:
				begun[id] = bytes.Clone(line)
			default:
				delete(begun, id)
			}
		})
	}
	var left []Event
	for id, line := range begun {
		var e Event
		if _, ours := s.calls[id]; !ours && json.Unmarshal(line, &e) == nil {
			left = append(left, e)
		}
	}
	slices.SortFunc(left, func(a, b Event) int { return cmp.Compare(a.Seq, b.Seq) })
	return left
}

func isCall(line []byte) bool { return bytes.Contains(line, []byte(`"event":"`+KindCall+`"`)) }

// eachLine calls do with every line of a segment. It passes a line longer than maxLine in parts.
func eachLine(root *os.Root, seg segment, do func(line []byte)) error {
	f, seg, err := openEither(root, seg)
	if err != nil {
		return err
	}
	defer f.Close()
	text := io.Reader(f)
	if seg.packed {
		unpacker, err := zstd.NewReader(f)
		if err != nil {
			return err
		}
		defer unpacker.Close()
		text = unpacker
	}
	for lines := bufio.NewReaderSize(text, maxLine); ; {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			do(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil && err != bufio.ErrBufferFull {
			return err
		}
	}
}
