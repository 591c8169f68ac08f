package tools

import (
	"fmt"
)

// maxValues bounds the values of a message of a client or a server. Decoded, {"a":1} takes forty times
// the memory of its text: of 16 MiB of that the daemon would not survive many.
const maxValues = 50_000

// ErrTooMany is the error of a message with more values than are decoded.
var ErrTooMany = fmt.Errorf("a message has more than %d values", maxValues)

// Tally counts the values of JSON text, about: what begins or separates them.
// The zero value is ready.
type Tally struct {
	values            int
	inString, escaped bool
}

// Add counts on. The error is [ErrTooMany].
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
