package audit

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"github.com/scopefs/scopefs/audit/segment"
)

// openCalls maps the id of each call that has begun and not ended to the segment of its first event.
type openCalls map[string]int

// follow updates c from the events in lines of segment n.
func (c openCalls) follow(lines []byte, n int) {
	for line := range bytes.Lines(lines) {
		if !isCall(line) {
			continue
		}
		switch id := segment.Value(line, "call"); {
		case id == "":
		case segment.Value(line, "outcome") == OutcomeBegin:
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
	all, _ := segment.List(s.root)
	begun := map[string][]byte{}
	for _, seg := range all {
		if seg.Number < from {
			continue
		}
		_ = segment.Lines(s.root, seg, 0, -1, func(line []byte) error {
			if !isCall(line) {
				return nil
			}
			switch id := segment.Value(line, "call"); {
			case id == "":
			case segment.Value(line, "outcome") == OutcomeBegin:
				begun[id] = bytes.Clone(line)
			default:
				delete(begun, id)
			}
			return nil
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
