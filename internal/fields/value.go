package fields

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/credential"
)

// Switch reads true or false.
func Switch(out *bool) Field {
	return func(n *yaml.Node) error {
		s, err := Scalar(n, "true or false", "!!bool")
		if err == nil {
			*out, err = strconv.ParseBool(strings.ToLower(s))
		}
		return err
	}
}

// Optional is Switch for a value that may be absent.
func Optional(out **bool) Field {
	return func(n *yaml.Node) error {
		*out = new(bool)
		return Switch(*out)(n)
	}
}

// Number reads a value with parse. It must be greater than zero.
func Number[T int | int64 | float64 | time.Duration](out *T, parse func(string) (T, error), tags ...string) Field {
	return positive(out, "a number without quotes, or with a unit where there is one", parse, tags...)
}

func positive[T int | int64 | float64 | time.Duration](out *T, want string, parse func(string) (T, error), tags ...string) Field {
	return func(n *yaml.Node) error {
		s, err := Scalar(n, want, tags...)
		if err != nil {
			return err
		}
		if *out, err = parse(s); err != nil {
			return err
		}
		if *out <= 0 {
			return fmt.Errorf("%q is not above zero: drop the key for the default", s)
		}
		return nil
	}
}

// ParseSize parses bytes, or a whole number with KiB, MiB or GiB.
func ParseSize(s string) (int64, error) {
	digits, shift := s, 0
	for unit, bits := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30} {
		if d, ok := strings.CutSuffix(s, unit); ok {
			digits, shift = d, bits
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > math.MaxInt64>>shift || n < 0 {
		return 0, fmt.Errorf("%q is no size: write bytes, or a whole number with KiB, MiB or GiB", s)
	}
	return n << shift, nil
}

// ParseCount parses a whole number.
func ParseCount(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("%q is no count: write a whole number", s)
	}
	return n, nil
}

// ParseDuration is time.ParseDuration with an error that has a remedy.
func ParseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is no duration: write one like 90s or 10m", s)
	}
	return d, nil
}

// ParseAge parses a duration of at least an hour, or a number of days such as 30d.
func ParseAge(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 15); err == nil {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is no time: write one such as 30d or 12h", s)
	}
	if d > 0 && d < time.Hour {
		return 0, fmt.Errorf("%q is too short: want 1h or more", s)
	}
	return d, nil
}

// CountTo returns a parser of whole numbers with an upper bound.
func CountTo(most int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := ParseCount(s)
		if err == nil && n > most {
			err = fmt.Errorf("%q is more than %d: lower it", s, most)
		}
		return n, err
	}
}

// Texts reads a list of texts, each of which check may refuse.
func Texts(out *[]string, key string, check func(string) error) Field {
	return func(n *yaml.Node) error {
		*out = []string{}
		return EachItem(n, func(item *yaml.Node) error {
			var text string
			if err := Text(&text)(item); err != nil {
				return fmt.Errorf("%s: an entry %w", key, err)
			}
			if check != nil {
				if err := check(text); err != nil {
					return fmt.Errorf("%s: %w", key, err)
				}
			}
			*out = append(*out, text)
			return nil
		})
	}
}

// Duration reads a duration above zero.
func Duration(out *time.Duration) Field {
	return positive(out, "a duration like 90s or 10m", ParseDuration, "!!str", "!!int")
}

// Credential reads where a secret is: {env: NAME}, {file: PATH}, {file: PATH, key: NAME} or
// {command: [PROGRAM, ARGUMENT...]}.
func Credential(out **credential.Source) Field {
	return func(n *yaml.Node) error {
		var s credential.Source
		err := Mapping(map[string]Field{
			"env":     Text(&s.Env),
			"file":    Text(&s.File),
			"key":     Text(&s.Key),
			"command": Texts(&s.Command, "command", nil),
		})(n)
		if err == nil {
			err = s.Check()
		}
		*out = &s
		return err
	}
}
