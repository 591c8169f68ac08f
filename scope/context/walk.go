package scoped

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// maxLevels bounds how deep objects and arrays are nested.
const maxLevels = 64

// compact returns JSON text without white space between its values. It refuses
// text that is no JSON or no UTF-8. Strings and numbers keep their bytes.
func compact(text []byte) ([]byte, *Error) {
	if !utf8.Valid(text) {
		return nil, errorf(Invalid, "the JSON is not UTF-8")
	}
	var out bytes.Buffer
	out.Grow(len(text))
	if err := json.Compact(&out, text); err != nil {
		return nil, errorf(Invalid, "no JSON: %v", err)
	}
	return out.Bytes(), nil
}

// walker reads the output of compact once. It refuses an object that has a name
// twice, and more than maxLevels levels.
type walker struct {
	text []byte
	at   int
}

// value reads any value.
func (w *walker) value(level int) *Error {
	switch w.text[w.at] {
	case '{':
		return w.object(level, nil)
	case '[':
		return w.array(level, nil)
	case '"':
		w.string()
	default:
		for w.at < len(w.text) && bytes.IndexByte([]byte(",]}"), w.text[w.at]) < 0 {
			w.at++
		}
	}
	return nil
}

// raw reads any value and returns its text.
func (w *walker) raw(level int) (json.RawMessage, *Error) {
	from := w.at
	err := w.value(level)
	return w.text[from:w.at:w.at], err
}

// string reads a string and returns its text.
func (w *walker) string() []byte {
	from := w.at
	for w.at++; w.text[w.at] != '"'; w.at++ {
		if w.text[w.at] == '\\' {
			w.at++
		}
	}
	w.at++
	return w.text[from:w.at]
}

// object reads an object. It calls member with each name and the text of its value.
func (w *walker) object(level int, member func(name string, value json.RawMessage) *Error) *Error {
	if level == maxLevels {
		return errorf(TooLarge, "more than %d levels", maxLevels)
	}
	var seen map[string]bool
	w.at++ // {
	for w.text[w.at] != '}' {
		name := unquote(w.string())
		if seen[name] {
			return errorf(Invalid, "the name is there twice").in(name)
		}
		if seen == nil {
			seen = map[string]bool{}
		}
		seen[name] = true
		w.at++ // :
		value, err := w.raw(level + 1)
		if err == nil && member != nil {
			err = member(name, value)
		}
		if err != nil {
			return err.in(name)
		}
		w.comma()
	}
	w.at++
	return nil
}

// array reads an array. It calls element, if there is one, to read each element.
func (w *walker) array(level int, element func(i int) *Error) *Error {
	if level == maxLevels {
		return errorf(TooLarge, "more than %d levels", maxLevels)
	}
	if element == nil {
		element = func(int) *Error { return w.value(level + 1) }
	}
	w.at++ // [
	for i := 0; w.text[w.at] != ']'; i++ {
		if err := element(i); err != nil {
			return err.at(i)
		}
		w.comma()
	}
	w.at++
	return nil
}

func (w *walker) comma() {
	if w.text[w.at] == ',' {
		w.at++
	}
}

// unquote returns the value of a string of valid JSON.
func unquote(text []byte) string {
	if bytes.IndexByte(text, '\\') < 0 {
		return string(text[1 : len(text)-1])
	}
	var s string
	if json.Unmarshal(text, &s) != nil {
		panic("no string: " + string(text)) // cannot happen
	}
	return s
}
