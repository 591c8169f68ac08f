package scope

import (
	"errors"
	"fmt"
)

// ErrInvalidID is the error of an id that is not one clean path component.
var ErrInvalidID = errors.New("invalid agent id")

// ID names an agent. It is one path component of 1 to 63 bytes that matches
// ^[a-z0-9][a-z0-9-]{0,62}$, so that it can stand in a path, a host name or a
// socket name without being quoted.
type ID string

// ParseID returns s as an ID, or an error that wraps ErrInvalidID.
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

// Dir returns the directory that is the agent's scope unless its definition
// names another, relative to the base directory.
func (id ID) Dir() string { return "agents/" + string(id) }

// UnmarshalText parses the id, so that no decoder can make an ID that is not one.
func (id *ID) UnmarshalText(text []byte) error {
	v, err := ParseID(string(text))
	if err != nil {
		return err
	}
	*id = v
	return nil
}
