package scoped

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// Canonical reads JSON text once. It returns the value as encoding/json decodes it, and
// the canonical form: names sorted, no white space between values, one form of each
// string. A number keeps its digits there; in the value, one beyond a float64 is
// infinite. Canonical refuses text that is no JSON or no UTF-8, that has a name twice in
// an object, or that has more than the given levels of objects and arrays.
func Canonical(text []byte, levels int) (value any, canonical []byte, err *Error) {
	if text, err = compact(text); err != nil {
		return nil, nil, err
	}
	r := reader{walker{text: text}, levels, make([]byte, 0, len(text))}
	value, err = r.read(0)
	return value, r.out, err
}

// reader reads the output of compact and appends its canonical form to out.
type reader struct {
	walker
	levels int
	out    []byte
}

func (r *reader) read(level int) (any, *Error) {
	from := r.at
	switch c := r.text[from]; {
	case c == '"':
		return r.readString(), nil
	case c != '{' && c != '[':
		_ = r.value(level) // a literal
		literal := r.text[from:r.at]
		r.out = append(r.out, literal...)
		if c == 't' || c == 'f' || c == 'n' {
			return map[byte]any{'t': true, 'f': false}[c], nil
		}
		f, _ := strconv.ParseFloat(string(literal), 64)
		return f, nil
	case level == r.levels:
		return nil, errorf(TooLarge, "more than %d levels", r.levels)
	case c == '{':
		return r.readObject(level + 1)
	}
	values := []any{}
	r.out = append(r.out, '[')
	err := r.array(level, func(i int) *Error {
		if i > 0 {
			r.out = append(r.out, ',')
		}
		v, err := r.read(level + 1)
		values = append(values, v)
		return err
	})
	r.out = append(r.out, ']')
	return values, err
}

func (r *reader) readString() string {
	quoted := r.string()
	s := unquote(quoted)
	if bytes.IndexByte(quoted, '\\') < 0 && !strings.Contains(s, "\u2028") && !strings.Contains(s, "\u2029") {
		r.out = append(r.out, quoted...)
		return s
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string
	r.out = append(r.out, bytes.TrimSuffix(out.Bytes(), []byte("\n"))...)
	return s
}

// readObject reads an object, and sorts its members in out.
func (r *reader) readObject(level int) (map[string]any, *Error) {
	type member struct {
		name     string
		from, to int // in out
	}
	values, all, from := map[string]any{}, []member{}, len(r.out)
	for r.at++; r.text[r.at] != '}'; r.comma() {
		m := member{from: len(r.out)}
		m.name = r.readString()
		if _, twice := values[m.name]; twice {
			return nil, errorf(Invalid, "the name is there twice").in(m.name)
		}
		r.at++ // :
		r.out = append(r.out, ':')
		v, err := r.read(level)
		if err != nil {
			return nil, err.in(m.name)
		}
		values[m.name], m.to = v, len(r.out)
		all = append(all, m)
	}
	r.at++
	slices.SortFunc(all, func(a, b member) int { return strings.Compare(a.name, b.name) })
	sorted := append(make([]byte, 0, len(r.out)-from+len(all)+1), '{')
	for i, m := range all {
		if i > 0 {
			sorted = append(sorted, ',')
		}
		sorted = append(sorted, r.out[m.from:m.to]...)
	}
	r.out = append(append(r.out[:from], sorted...), '}')
	return values, nil
}
