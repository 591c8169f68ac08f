package bridge

import (
	"bytes"
	"encoding/json"
)

// scan finds the ID and the method of a message without parsing its parameters.
// These can be megabytes, and encoding/json scans them twice. ok is false for
// unusual input, which the caller passes to encoding/json. The daemon validates
// the message.
func scan(line []byte) (m message, ok bool) {
	s := scanner{text: line}
	if !s.next('{') {
		return m, false
	}
	for {
		key, plain := s.str()
		if !plain || !s.next(':') {
			return m, false
		}
		s.blanks()
		from := s.at
		if !s.value() {
			return m, false
		}
		switch value := line[from:s.at]; string(key) {
		case "id":
			if m.ID = value; !json.Valid(value) {
				return m, false
			}
		case "method":
			v := scanner{text: value}
			method, plain := v.str()
			if !plain || v.at != len(value) {
				return m, false
			}
			m.Method = string(method)
		}
		switch {
		case s.next(','):
		case s.next('}'):
			return m, len(bytes.TrimSpace(line[s.at:])) == 0
		default:
			return m, false
		}
	}
}

// scanner is a position in a text.
type scanner struct {
	text []byte
	at   int
}

func (s *scanner) blanks() {
	for s.at < len(s.text) && bytes.IndexByte([]byte(" \t\r\n"), s.text[s.at]) >= 0 {
		s.at++
	}
}

// next skips blanks and the character c. It reports whether c was next.
func (s *scanner) next(c byte) bool {
	s.blanks()
	if s.at == len(s.text) || s.text[s.at] != c {
		return false
	}
	s.at++
	return true
}

// str skips a string and returns its content. plain is false if the string has
// escapes.
func (s *scanner) str() (text []byte, plain bool) {
	if !s.next('"') {
		return nil, false
	}
	from := s.at
	for {
		i := bytes.IndexByte(s.text[s.at:], '"')
		if i < 0 {
			s.at = len(s.text)
			return nil, false
		}
		end := s.at + i
		s.at = end + 1
		escapes := 0
		for end-escapes > from && s.text[end-escapes-1] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			text = s.text[from:end]
			return text, bytes.IndexByte(text, '\\') < 0
		}
	}
}

// value skips a value. ok is false at the end of the text.
func (s *scanner) value() (ok bool) {
	for depth := 0; s.at < len(s.text); {
		switch s.text[s.at] {
		case '"':
			if s.str(); s.text[s.at-1] != '"' {
				return false
			}
			if depth == 0 {
				return true
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return true
			}
			if depth--; depth == 0 {
				s.at++
				return true
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return true
			}
		}
		s.at++
	}
	return false
}
