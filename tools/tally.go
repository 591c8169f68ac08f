package tools

import (
	"fmt"
	"time"

	"github.com/scopefs/scopefs/tools/limit"
)

// maxValues bounds the values in a message of a client or a server. Decoded, {"a":1} takes
// forty times the memory of its text: a few messages of 16 MiB would end the daemon.
const maxValues = 50_000

// ErrTooMany reports a message with more than maxValues values.
var ErrTooMany = fmt.Errorf("a message has more than %d values", maxValues)

// Tally counts the values of JSON text approximately, by the characters that begin or
// separate them. The zero value is ready to use.
type Tally struct {
	values            int
	inString, escaped bool
}

// Add counts the values of a further piece. The error is [ErrTooMany].
func (t *Tally) Add(p []byte) error {
	for _, c := range p {
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
		}
	}
	return nil
}

// Values returns the number of values so far.
func (t *Tally) Values() int { return t.values }

// What the input of an agent takes of a processor before a door bounds it: a fifth, whatever the doors and however many clients.
const (
	shareSecond = 200 * time.Millisecond // of processor time, each second
	shareBurst  = 100 * time.Millisecond // at once
)

// NewShare returns the share of an agent. All doors of the agent have the same one.
func NewShare() *limit.Share { return limit.NewShare(shareSecond, shareBurst) }

// ParseTime returns about how long a processor takes to parse a message of JSON, of so many bytes and values: measured, and rounded up.
func ParseTime(bytes, values int) time.Duration {
	return 20*time.Microsecond + time.Duration(bytes)*15*time.Nanosecond + time.Duration(values)*150*time.Nanosecond
}
