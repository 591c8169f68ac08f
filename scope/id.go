package scope

import (
	"errors"
	"fmt"
)

// ErrInvalidID reports an id that is not valid: see ID.
var ErrInvalidID = errors.New("invalid agent id")

// ID names an agent. It has 1 to 63 bytes and matches
// ^[a-z0-9][a-z0-9-]{0,62}$, so that it needs no quoting in a path, a host name
// or a socket name.
type ID string

// ParseID returns s as an ID. For an invalid id the error wraps ErrInvalidID.
func ParseID(s string) (ID, error) {
	ok := len(s) >= 1 && len(s) <= 63 && s[0] != '-'
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		ok = 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-'
	}
	if !ok {
		return "", fmt.Errorf("%w %q: want 1 to 63 of a-z, 0-9 and '-', not starting with '-'", ErrInvalidID, s)
	}
	return ID(s), nil
}

// Dir returns the default directory of the agent's scope, relative to the base
// directory. The agent's definition may name another.
func (id ID) Dir() string { return "agents/" + string(id) }

// UnmarshalText parses the id, so that a decoder cannot create an invalid ID.
func (id *ID) UnmarshalText(text []byte) error {
	v, err := ParseID(string(text))
	if err != nil {
		return err
	}
	*id = v
	return nil
}
