package fields

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// User reads a user: a name, a uid or uid:gid.
func User(out *string) Field {
	return func(n *yaml.Node) error {
		s, err := Scalar(n, "a user name, a uid or uid:gid", "!!str", "!!int")
		if err != nil {
			return err
		}
		if err := NotExpanded(s); err != nil {
			return err
		}
		if !isUser(s) {
			return fmt.Errorf("%q is no user: want a name, a uid or uid:gid, numbers from 0 to %d", s, math.MaxUint32-1)
		}
		*out = s
		return nil
	}
}

func isUser(s string) bool {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }) {
		return false
	}
	if c := s[0]; c < '0' || c > '9' {
		return c != '-' && c != '+' && !strings.Contains(s, ":") // a name does not start like this, but a number out of range does
	}
	uid, gid, both := strings.Cut(s, ":")
	return isNumericID(uid) && (!both || isNumericID(gid))
}

// isNumericID reports whether s is a uid or gid. The greatest number is not:
// setresuid(2) reads it as "unchanged".
func isNumericID(s string) bool {
	n, err := strconv.ParseUint(s, 10, 32)
	return err == nil && n != math.MaxUint32
}
