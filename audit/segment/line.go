package segment

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/audit/tree"
)

// Unended returns a line without its newline.
func Unended(line []byte) []byte { return bytes.TrimSuffix(line, []byte("\n")) }

// ParseEvent returns the sequence number of a whole line, or 0 if the line is not a valid event.
func ParseEvent(line []byte) uint64 {
	var e struct{ Seq uint64 }
	if !bytes.HasSuffix(line, []byte("\n")) || json.Unmarshal(line, &e) != nil {
		return 0
	}
	return e.Seq
}

// ParseHead parses the beginning of a line: its sequence number and its time.
func ParseHead(line []byte) (seq uint64, at time.Time, ok bool) {
	seq, rest, ok := ParseSeq(line)
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

// ParseSeq parses the sequence number that a line begins with, and returns what follows.
func ParseSeq(line []byte) (seq uint64, rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(line, []byte(`{"seq":`))
	i := bytes.IndexByte(rest, ',')
	if !ok || i < 0 {
		return 0, nil, false
	}
	seq, err := strconv.ParseUint(string(rest[:i]), 10, 64)
	return seq, rest[i:], err == nil
}

// Value returns the raw string of a key in a line that the log has written. The key cannot occur inside a string, because
// quotes in strings are escaped.
func Value(line []byte, key string) string {
	_, rest, found := bytes.Cut(line, []byte(`"`+key+`":"`))
	i := bytes.IndexByte(rest, '"')
	if !found || i < 0 {
		return ""
	}
	return string(rest[:i])
}

// Denied reports whether a line is a denial or a violation. It looks for the v, because quotes are frequent.
func Denied(line []byte) bool {
	const key = `verdict":"`
	for from := 1; from < len(line); {
		i := bytes.Index(line[from:], []byte(key))
		if i < 0 {
			return false
		}
		if from += i; line[from-1] == '"' {
			from += len(key)
			return from < len(line) && line[from] != 'a' // 'a' is allow
		}
		from++
	}
	return false
}

// Count counts a line of a kind, as the head of a log does.
func Count(c *tree.Counts, kind string, line []byte) {
	if Denied(line) {
		c.Denied++
	}
	switch kind {
	case event.KindCall, event.KindNetwork:
		switch Value(line, "outcome") {
		case event.OutcomeBegin:
			c.Begun++
		case event.OutcomeUnknown:
			c.Unknown++
		default:
			c.Ended++
		}
	case event.KindAudit:
		if Lost(Value(line, "outcome")) {
			c.Lost++
		}
	}
}

// Lost reports whether an event of the log about itself says with this outcome that lines are lost.
func Lost(outcome string) bool {
	return outcome == event.OutcomeLost || outcome == event.OutcomeUnclean || outcome == event.OutcomeTorn
}

// RemovedFormat begins the detail of [event.OutcomeRemoved].
const RemovedFormat = "segments %d to %d"
