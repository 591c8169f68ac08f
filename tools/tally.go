package tools

import (
	"fmt"
	"time"

	"github.com/scopefs/scopefs/tools/limit"
)

// maxValues bounds the values in a message of a client or a server. Decoded, {"a":1} takes
// forty times the memory of its text: a few messages of 16 MiB would end the daemon.
const maxValues = 50_000

// maxNested bounds the sum of the levels around each byte of a message, beyond fewLevels, five times outside of strings. The SDK reads what it decodes into any once at
// each level: that takes as long as to parse the largest message.
const (
	maxNested = 128 << 20
	fewLevels = 8
)

// ErrTooMany reports a message with more than maxValues values, or more than maxNested.
var ErrTooMany = fmt.Errorf("a message has more than %d values, or too many levels for its size", maxValues)

// Tally counts the values and the levels of JSON text approximately, by the characters that begin, separate
// and end them. The zero value is ready to use.
type Tally struct {
	bytes, values     int
	depth, nested     int
	small             int // numbers that may be too small for the fast way to a float64
	digits            int // in a row
	exponent          int // 1: the last byte is an e; 2: the digits are of a negative exponent
	inString, escaped bool
}

// Add counts a further piece. The error is [ErrTooMany].
func (t *Tally) Add(p []byte) error {
	t.bytes += len(p)
	for _, c := range p {
		if t.depth > fewLevels {
			levels := t.depth - fewLevels
			if !t.inString {
				levels *= 5 // measured
			}
			if t.nested += levels; t.nested > maxNested {
				return ErrTooMany
			}
		}
		if t.inString || c < '.' || c > '9' {
			if t.digits = 0; c == '-' && t.exponent == 1 {
				t.exponent = 2
			} else {
				t.exponent = 0
			}
		}
		switch {
		case t.escaped:
			t.escaped = false
		case t.inString:
			t.escaped, t.inString = c == '\\', c != '"'
		case c == '"':
			t.inString = true
		case c == '{' || c == '[' || c == ',':
			if t.values++; t.values > maxValues {
				return ErrTooMany
			}
			if c != ',' {
				t.depth++
			}
		case c == '}' || c == ']':
			t.depth--
		case c == 'e' || c == 'E':
			t.exponent = 1
		case c >= '.' && c <= '9':
			if t.digits++; t.digits == longDigits || t.digits == 3 && t.exponent == 2 {
				t.small++
			}
		}
	}
	return nil
}

// Time returns about how long a processor takes to parse the text so far.
func (t *Tally) Time() time.Duration {
	return ParseTime(t.bytes) + time.Duration(t.values)*valueTime + time.Duration(t.small)*smallTime + time.Duration(t.nested)*levelTime
}

// What JSON takes of a processor: measured, and rounded up.
const (
	messageTime = 20 * time.Microsecond
	byteTime    = 15 * time.Nanosecond
	valueTime   = 150 * time.Nanosecond
	levelTime   = 2 * time.Nanosecond // of a byte
	smallTime   = 40 * time.Microsecond
	longDigits  = 40 // with fewer, and an exponent of two digits, no number is too small
)

// ParseTime returns about how long a processor takes to parse a message of so many bytes and few values: see [Tally.Time].
func ParseTime(bytes int) time.Duration { return messageTime + time.Duration(bytes)*byteTime }

// What the input of an agent takes of a processor before a door bounds it: a fifth, whatever the doors and however many clients.
const (
	shareEach  = 200 * time.Millisecond // of processor time, each second
	shareBurst = 20 * time.Millisecond  // at once: another agent waits for it
)

// NewShare returns the share of an agent. All doors of the agent have the same one.
func NewShare() *limit.Share { return limit.NewShare(shareEach, shareBurst) }
