package tools

import (
	"fmt"
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
