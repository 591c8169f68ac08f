package fields

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Env reads variables by name, whose values Expanded reads. vars are variables in addition to the environment.
func Env(out *map[string]string, vars map[string]string) Field {
	return func(n *yaml.Node) error {
		*out = map[string]string{}
		return EachKey(n, func(name string, value *yaml.Node) error {
			if !IsVariable(name) {
				return fmt.Errorf("env: %q is no name of a variable: want letters, digits and '_'", name)
			}
			var text string
			if err := Expanded(&text, vars)(value); err != nil {
				// No colon after the name: the log redacts text after
				// "API_KEY:".
				return AtLine(value.Line, fmt.Errorf("env: %s %w", name, err))
			}
			(*out)[name] = text
			return nil
		})
	}
}

// ErrUnset reports a variable that the environment lacks.
var ErrUnset = errors.New("is not set")

// Expanded reads a text and expands each ${VAR} in it from vars, or else from the environment of this process.
func Expanded(out *string, vars map[string]string) Field {
	return func(n *yaml.Node) error {
		s, err := Scalar(n, "a text, in quotes where need be", "!!str")
		if err == nil {
			*out, err = expandVars(s, vars)
		}
		if err == nil && strings.ContainsRune(*out, 0) {
			err = errors.New("holds a NUL: remove it")
		}
		return err
	}
}

// expandVars expands each ${VAR} of s from vars or else from the environment,
// and replaces $${ by ${. It does not expand the result again.
func expandVars(s string, vars map[string]string) (string, error) {
	var b strings.Builder
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			b.WriteString(s)
			return b.String(), nil
		}
		if i > 0 && s[i-1] == '$' {
			b.WriteString(s[:i-1] + "${")
			s = s[i+2:]
			continue
		}
		b.WriteString(s[:i])
		name, rest, ended := strings.Cut(s[i+2:], "}")
		value, ok := vars[name]
		if !ended || !ok && !IsVariable(name) {
			return "", errors.New("has a ${ that names no variable: write ${VAR}, or $${ for the characters themselves")
		}
		if !ok {
			value, ok = os.LookupEnv(name)
		}
		if !ok {
			return "", fmt.Errorf("names ${%s}, which %w: set it in the daemon's environment, or remove it", name, ErrUnset)
		}
		b.WriteString(value)
		s = rest
	}
}

// NotExpanded returns an error for a text with ${VAR} in a place that does not expand it.
func NotExpanded(s string) error {
	_, after, found := strings.Cut(s, "${")
	name, _, ended := strings.Cut(after, "}")
	if !found || !ended || !IsVariable(name) {
		return nil
	}
	return fmt.Errorf("has ${%s}, which only env and the texts of a server take: write the value itself", name)
}

// IsVariable reports whether s is a valid name of a shell variable.
func IsVariable(s string) bool {
	return s != "" && (s[0] < '0' || s[0] > '9') && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	})
}
